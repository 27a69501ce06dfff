"""`report`: from an event log to one self-contained page with a decision, and its result `Report`."""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np

from departing.abtest.power import power
from departing.abtest.sample_size import SampleSize
from departing.data.inactivity import ReturnTimes
from departing.data.log import Log, suggest_inactivity
from departing.data.over_time import OverTime
from departing.data.read_source import read_source
from departing.data.spec import AUTO
from departing.decision.claims import CENTRE, PolicyValue
from departing.decision.decision import Decision
from departing.decision.plan import plan
from departing.evaluation.evaluate import evaluate
from departing.fitting.fit import Fit, fit
from departing.fitting.goodness_of_fit import FitCheck
from departing.fitting.type_names import name_types
from departing.formatting import format_count, shorten_name
from departing.model.counts import Booleans
from departing.model.errors import InputError
from departing.model.files import atomic_write, check_suffix, check_writable
from departing.model.frames import to_frame
from departing.model.histories import Histories
from departing.model.validation import check_int, check_seed
from departing.offpolicy.direct_method import evaluation_tolerance
from departing.offpolicy.estimators import off_policy_value
from departing.offpolicy.limits import MIN_LEFT_OUT, Extrapolation, extrapolation, left_out_share
from departing.offpolicy.value import OffPolicyValue
from departing.planning.plan import compile_in_background
from departing.policy.starts import describe_starts
from departing.reporting.command_options import command_options, log_names
from departing.reporting.rare_categories import rare_categories, rare_sentence
from departing.reporting.verdict import Verdict, give_verdict, is_negligible, refusal

PAGE_SUFFIXES = (".html", ".htm")
STAGES = ("reading", "fitting", "checking", "planning", "evaluating", "writing")
LOG_POLICY, ALWAYS = "policy of the log", "always "  # names in the values of a decision
MAX_NODES = 20_000  # of an evaluation for the share of a value beyond the log: enough for a percentage
# An off-policy estimate that takes more than this share of the clicks from the model is one of the model.
MAX_TAIL_SHARE = 0.5
BOOTSTRAP, MIN_DRAWS = 100, 20  # with fewer, the ends of a 95% interval are the extremes of the sample
TYPES, N_INIT = range(1, 6), 12  # as in `fit`
# The time of a fit grows with the third power of its parameters. Above MANY there are fewer initial points and draws;
# candidates with more than MAX_PARAMETERS are left out. With 200 categories a report takes about 20 s of CPU time.
MANY, MAX_PARAMETERS, FEW_INIT = 360, 900, 3

StageProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Report:
    """Results of a report, from the log to the decision.

    Attributes
    ----------
    log : Log
        The log, with its data quality report (`log.report`).
    fit : Fit or None
        Types of users; None if nothing can be fitted (`failure` says why).
    check : FitCheck or None
        Goodness of fit.
    decision : Decision or None
        Recommended policy with its uncertainty; None if the log cannot answer or the model does not fit.
    ope : OffPolicyValue or None
        Off-policy value of the recommended policy; None unless the log has propensities.
    sample_size : SampleSize or None
        Users of an A/B test against the policy of the log; None if the values are practically equal.
    return_times : ReturnTimes or None
        Times after which users return, if departures are defined by inactivity.
    failure : str
        Sentence about why nothing can be fitted, or "".
    log_name : str
        Name of the log in the commands of the page.
    note : str
        Sentence at the top of the page, such as that the log is simulated.
    before_commands : tuple of str
        Commands to run before those of the page.
    source_name : str
        Name of the log at the top of the page.
    options : tuple of str
        Options of the command `report` for the same analysis, such as "--types 2".
    over_time : OverTime or None
        Rates of the log by calendar time; None if nothing changes and there is no half-life.
    """

    log: Log
    fit: Fit | None
    check: FitCheck | None
    decision: Decision | None
    ope: OffPolicyValue | None
    sample_size: SampleSize | None = None
    return_times: ReturnTimes | None = None
    failure: str = ""
    log_name: str = "events.csv"
    note: str = ""
    before_commands: tuple[str, ...] = ()
    source_name: str = ""
    options: tuple[str, ...] = ()
    over_time: OverTime | None = None

    @property
    def unit(self) -> str:
        """Unit of values: that of the rewards of the log, clicks by default."""
        return self.log.unit

    @property
    def fits(self) -> bool:
        """True unless there is evidence of a misfit that is large enough to matter."""
        return self.check is not None and self.check.fits

    @cached_property
    def verdict(self) -> Verdict:
        """Recommendation with its uncertainty, or the reason why there is none."""
        return give_verdict(self)

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        """Names of the types, such as "news lovers"."""
        return name_types(self.fit.instance, self.known_clicks) if self.fit is not None else ()

    @cached_property
    def rare_categories(self) -> tuple[int, ...]:
        """Indices of the categories with too few impressions to be recommended."""
        return rare_categories(self.log)

    @property
    def known_clicks(self) -> Booleans:
        """Click probabilities `[K, M]` that the log determines, of categories that are not rare."""
        assert self.fit is not None
        known = np.array(self.fit.identified.click, bool)
        known[list(self.rare_categories)] = False
        return known

    @cached_property
    def first_category(self) -> int:
        """Index of the category that the recommended policy shows first; with segments, to the most users."""
        assert self.decision is not None
        if self.decision.starts:
            return (self.log.categories or ()).index(self.decision.starts[0].category)
        return int(self.decision.policy.recommend(np.zeros((1, len(self.log.categories or ()), 4), np.int64))[0])

    @property
    def start(self) -> str:
        """Phrase for the category that the recommended policy shows first, by segment where they differ."""
        assert self.decision is not None
        if self.decision.starts:
            return describe_starts(self.decision.starts)
        return shorten_name((self.log.categories or ())[self.first_category])

    def with_type_names(self, text: str) -> str:
        """Replace the names of types in a sentence of the fit or its check by those of the page."""
        if self.fit is None:
            return text
        names = dict(zip(self.fit.instance.types, self.type_names, strict=True))
        own = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        quoted = rf"(?<=for )'({own})'|(?<=ypes )'({own})'|(?<=and )'({own})'(?= are)"
        share = rf"(?<=share of )({own})(?= from | in segment )"
        return re.sub(f"{quoted}|{share}", lambda match: names[next(filter(None, match.groups()))], text)

    @property
    def uses_ope(self) -> bool:
        """True if the value of the recommended policy is an off-policy estimate, False if it is the model's."""
        return self.ope is not None and self.ope.dr is not None and self.ope.tail_share <= MAX_TAIL_SHARE

    @property
    def value(self) -> PolicyValue:
        """Expected clicks per user of the recommended policy, corrected for optimism, with a 95% interval.

        The policy was chosen on the log that the off-policy estimate uses too, so that estimate is as optimistic as
        the model's: if the model is correct, the latter is efficient, and the difference of both is independent of
        the choice.
        """
        assert self.decision is not None
        own = self.decision.value
        if not self.uses_ope or self.ope is None or self.ope.dr is None:
            return own
        dr, optimism = self.ope.dr, max(self.ope.dm.value - own.value, 0.0)
        value = max(dr.value - optimism, 0.0)
        lower, upper = (max(end - CENTRE * optimism, 0.0) for end in (dr.lower, dr.upper))
        return PolicyValue(own.name, value, min(lower, value), max(upper, value))

    @property
    def today(self) -> float:
        """Clicks per user under the policy of the log, corrected for censoring; NaN if the log shows first steps."""
        assert self.decision is not None
        return next((each.value for each in self.decision.values if each.name == LOG_POLICY), np.nan)

    @property
    def gain_over_log(self) -> PolicyValue | None:
        """Gain of the recommended policy over the policy of the log, or None if that value is unknown."""
        assert self.decision is not None
        gain = next((each for each in self.decision.gains if each.name == LOG_POLICY), None)
        if gain is None or not self.uses_ope:
            return gain
        value, today = self.value, self.today
        return PolicyValue(LOG_POLICY, *(end - today for end in (value.value, value.lower, value.upper)))

    @property
    def is_fixed(self) -> bool:
        """True if showing one category to everyone is as good as the recommended policy."""
        assert self.decision is not None
        return is_negligible(self._gain_over_fixed.value, self.decision.value.value)

    @property
    def best_fixed(self) -> str:
        """Name of the category that is best if everyone is shown the same."""
        return self._gain_over_fixed.name.removeprefix(ALWAYS)

    @property
    def _gain_over_fixed(self) -> PolicyValue:
        assert self.decision is not None
        return next(each for each in self.decision.gains if each.name.startswith(ALWAYS))

    @cached_property
    def extrapolation(self) -> Extrapolation:
        """Part of the value of the recommended policy that lies beyond the longest history of the log."""
        assert self.fit is not None
        assert self.decision is not None
        policy, tolerance = self.decision.policy, evaluation_tolerance(self.fit.instance)
        value = evaluate(self.fit.instance, policy, tolerance, MAX_NODES).value
        return extrapolation(self.fit, policy, value, self.log, MAX_NODES)

    def describe(self) -> str:
        """Return the headline of the report."""
        return self.verdict.headline

    def summary(self) -> str:
        """Return the verdict, the types and the data quality in several lines."""
        lines = [str(self.verdict), *filter(None, [rare_sentence(self)])]
        if self.fit is not None:
            prior = self.fit.instance.prior
            types = (f"{share:.0%} {name}" for name, share in zip(self.type_names, prior, strict=True))
            lines.append(f"Users: {', '.join(types)}.")
        if self.check is not None:
            lines.append(self.with_type_names(self.check.describe()))
        facts = self.log.report
        users = format_count(facts.users, "user")
        lines.append(f"{facts.used:,} of {facts.events:,} rows of {self.source_name} used, {users}.")
        return "\n".join(lines)

    __str__ = summary

    def to_html(self) -> str:
        """Return the page."""
        from departing.reporting.log_page import log_page

        return log_page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to an .html file."""
        check_suffix(path, PAGE_SUFFIXES)
        text = self.to_html()
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")

    def to_frame(self) -> Any:
        """Return the types as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each type: name, share and the click rate of every category; no rows without a fit.
        """
        columns: dict[str, Any] = {"type": list(self.type_names)}
        if self.fit is not None:
            instance = self.fit.instance
            columns["share"] = instance.prior.tolist()
            columns |= {f"click: {name}": instance.click[a].tolist() for a, name in enumerate(instance.categories)}
        return to_frame(columns)

    def _repr_html_(self) -> str:
        from departing.html_tables import html_repr

        rows = []
        if self.fit is not None:
            rows = [[n, f"{share:.0%}"] for n, share in zip(self.type_names, self.fit.instance.prior, strict=True)]
        return html_repr(self.verdict.headline, ["type of users", "share"], rows, self.verdict.sentences)

    def __repr__(self) -> str:
        return f"<Report of {format_count(self.log.report.users, 'user')}: {self.verdict.headline}>"


def report(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    types: int | Iterable[int] | None = None,
    bootstrap: int | None = None,
    seed: int = 0,
    half_life: str | float | timedelta | None = None,
    progress: StageProgress | None = None,
    **columns: Any,
) -> Report:
    """Analyse an event log and recommend what to show, on one self-contained page.

    Parameters
    ----------
    source : Log, path, frame or connection
        Log from `read_log`, or anything that `read_log` reads.
    output : path, optional
        Page to write (.html).
    types : int or iterable of int, optional
        Number of types of users, or candidates from which the adjusted BIC chooses [default: 1 to 5, fewer if there
        are more than 90 categories].
    bootstrap : int, optional
        Bootstrap draws for the uncertainty, at least 20 [default: 100, or 20 if there are more than 90 categories].
    seed : int
        Seed of the random numbers.
    half_life : str, float or timedelta, optional
        Age at which a user counts half, such as "30 days"; see `fit` [default: all users count alike].
    progress : callable, optional
        Called with the name of the current stage, its finished steps and their total.
    **columns
        Arguments of `read_log`, such as `user="uid"`. Without a departure column and `inactive_after`, the
        inactivity period is the one that `suggest_inactivity` suggests.

    Returns
    -------
    Report
        All results; `verdict` is the top of the page.

    Raises
    ------
    InputError
        If the log cannot be read or an argument is invalid. A log that can be read always gives a report; its
        verdict says if it cannot answer.

    Examples
    --------
    >>> import tempfile, departing as dp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dp.sample_log(dp.Instance([1.0], [[0.6], [0.3]], 0.5), 500, seed=1).save(f"{folder}/events.csv")
    ...     result = report(f"{folder}/events.csv", inactive_after="14 days", bootstrap=20)
    >>> result.verdict.kind, result.verdict.headline
    ('fixed', 'Show category 0 to everyone.')
    """
    seed = check_seed(seed)
    if bootstrap is not None:
        bootstrap = check_int("bootstrap", bootstrap, MIN_DRAWS, 10_000)
    if output is not None:
        check_writable(output, PAGE_SUFFIXES)
    candidates = types if types is None or isinstance(types, Iterable) else [types]

    def at(stage: str) -> Callable[[int, int], None]:
        def update(done: int, total: int) -> None:
            if progress is not None:
                progress(stage, done, total)

        update(0, 1)
        return update

    at("reading")
    log = _log(source, columns)
    result = analyse(log, None if candidates is None else list(candidates), bootstrap, seed, at, half_life)
    if output is not None:
        at("writing")
        result.save(output)
    return result


def _log(source: Any, columns: dict[str, Any]) -> Log:
    if not isinstance(source, Histories) and columns.get("inactive_after") is None:
        columns = columns | {"inactive_after": AUTO}
    log = read_source(source, columns, report)
    if not isinstance(log, Log):
        raise InputError("source is Histories, which do not keep the order of steps; expected a Log or its source.")
    return log


def analyse(
    log: Log,
    types: list[int] | None,
    bootstrap: int | None,
    seed: int,
    at: Callable[[str], Callable[[int, int], None]],
    half_life: str | float | timedelta | None = None,
) -> Report:
    """Compute everything that a log allows; `at` gives the progress of a stage."""
    names = log_names(log) | {"options": command_options(types, bootstrap, seed, half_life)}
    distinct, parameters = len(log.confirmed.without_segments.distinct), 2 * len(log.categories or ())
    if not distinct:
        return Report(log, None, None, None, None, failure="The outcome of every event is still open.", **names)
    if types is None:
        types = [m for m in TYPES if m <= 2 or m * parameters <= MAX_PARAMETERS]
    types = [m for m in types if not isinstance(m, int) or m <= distinct] or (types and [distinct])
    many = 2 * parameters > MANY
    bootstrap = bootstrap or (MIN_DRAWS if many else BOOTSTRAP)
    with compile_in_background():  # the planner
        model = fit(
            log,
            types,
            n_init=FEW_INIT if many else N_INIT,
            seed=seed,
            progress=at("fitting"),
            half_life=half_life,
        )
        at("checking")
        check = model.check()
    times = log.over_time() if check.drift is not None or half_life is not None else None
    described = Report(log, model, check, None, None, return_times=_return_times(log), over_time=times, **names)
    if refusal(described):
        return described
    rare = set(described.rare_categories)
    allowed = [a for a in range(model.instance.n_categories) if a not in rare]
    decision = plan(model, allowed=allowed, bootstrap=bootstrap, seed=seed, progress=at("planning"))
    ope = None
    if "propensity" in log.report.columns and model.half_life is None and left_out_share(log) < MIN_LEFT_OUT:
        progress = at("evaluating")
        with suppress(InputError):  # too few users departed
            ope = off_policy_value(log, decision.policy, fit=model, bootstrap=bootstrap, seed=seed, progress=progress)
    return replace(described, decision=decision, ope=ope, sample_size=_sample_size(decision))


def _sample_size(decision: Decision) -> SampleSize | None:
    """Users of an A/B test against the policy of the log, or None if the values are equal or nobody departs."""
    try:
        return power(decision)
    except InputError:
        return None


def _return_times(log: Log) -> ReturnTimes | None:
    """Times after which users return, or None if they define no departures or are too few."""
    if log.profile.inactive is None:
        return None
    try:
        return suggest_inactivity(log)
    except InputError:
        return None
