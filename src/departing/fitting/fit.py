"""From histories to an instance: maximum likelihood, its errors, and what cannot be told."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import ceil
from statistics import NormalDist

import numpy as np

from departing.fitting.goodness_of_fit import Check, check
from departing.fitting.identifiability import doubts
from departing.fitting.likelihood import Evidence, Parameters
from departing.fitting.maximum import Solution, maximise
from departing.fitting.resampling import Design, redrawn
from departing.fitting.type_matching import matched, ordered
from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.instance import CLICK_DEPART, STAY, Floats, Instance
from departing.model.progress import Progress
from departing.model.validation import check_float, check_int, check_seed

MOST_TYPES = 64
CRITERIA = ("bic", "held-out")
HELD_OUT = 0.2  # share of the users that are set aside to compare numbers of types
SELDOM = 0.05  # chance of leaving at a step below which a type is said to leave seldom
CHECKED = 50_000  # users whose steps are looked at together


@dataclass(frozen=True)
class Criterion:
    """How well a number of types does: `held_out` is the mean log-likelihood of a user who was set aside."""

    types: int
    parameters: int
    log_likelihood: float
    bic: float
    held_out: float


@dataclass(frozen=True, eq=False)
class Fit:
    """An instance estimated from histories.

    `errors` are standard errors of prior, click, depart and depart_on_click, 0 where a chance was not estimated;
    `identified` tells which of them the histories tell at all. `criteria` compares the numbers of types that were
    tried, and `warnings` are sentences about what to be careful with.
    """

    instance: Instance
    log_likelihood: float
    criteria: tuple[Criterion, ...]
    warnings: tuple[str, ...]
    identified: Parameters
    histories: Histories
    evidence: Evidence
    eta: Floats
    covariance: Floats
    pseudo: float

    @cached_property
    def errors(self) -> Parameters:
        """Standard errors, from the observed information."""
        return self._spread(lambda chance, error: error * chance * (1 - chance))

    def intervals(self, confidence: float = 0.95) -> tuple[Parameters, Parameters]:
        """The ends of confidence intervals, made for log-odds, so that they stay between 0 and 1."""
        z = NormalDist().inv_cdf(0.5 + check_float("confidence", confidence, 0.0, 1 - 1e-9) / 2)
        ends = [self._spread(lambda chance, error, s=s: _moved(chance, s * error), own=True) for s in (-z, z)]
        return ends[0], ends[1]

    def _spread(self, of: Callable[..., Floats], own: bool = False) -> Parameters:
        """`of(chance, error of its log-odds)` for all estimates; 0, or the chance itself, where nothing was."""
        found, k, m = self.evidence.unpack(self.eta), self.evidence.n_categories, self.instance.n_types
        questions = self.evidence.n_questions
        error = np.sqrt(np.diag(self.covariance)[: questions * m]).reshape(questions, m)
        first, second = k, k + len(self.evidence.departing)
        depart = np.array(found.depart) if own else np.zeros((k, m))
        last = np.array(found.depart_on_click) if own else np.zeros((k, m))
        depart[self.evidence.departing] = of(found.depart[self.evidence.departing], error[first:second])
        last[self.evidence.leaving] = of(found.depart_on_click[self.evidence.leaving], error[second:])
        return Parameters(
            of(found.prior, self._prior_errors(found.prior)), of(found.click, error[:first]), depart, last
        )

    def _prior_errors(self, prior: Floats) -> Floats:
        """Standard errors of the log-odds of every share."""
        m = len(prior)
        if m == 1:
            return np.zeros(1)
        slopes = prior[:, None] * (np.eye(m)[:, :-1] - prior[:-1]) / np.maximum(prior * (1 - prior), 1e-300)[:, None]
        tail = self.covariance[-(m - 1) :, -(m - 1) :]
        return np.asarray(np.sqrt(np.einsum("xi,ij,xj->x", slopes, tail, slopes)))

    def bootstrap(
        self, times: int = 200, kind: str = "parametric", seed: int = 0, progress: Progress | None = None
    ) -> list[Instance]:
        """Instances fitted to histories drawn anew, in place of these.

        `parametric` draws users from this instance, shown categories as often as they were and watched as long;
        `resample` draws from the users themselves, which is right also where the model is wrong.
        """
        if kind not in ("parametric", "resample"):
            raise InputError(f"kind is {kind!r}; allowed are parametric, resample.")
        rng = np.random.default_rng([check_seed(seed), 5])
        times, design = check_int("times", times), Design.of(self.histories.confirmed)
        found = []
        for done in range(times):
            again = (
                design.draw(self.instance, rng) if kind == "parametric" else redrawn(self.histories.confirmed, rng)
            )
            evidence = self._same_questions(again)
            best = maximise(evidence, self.eta[None], self.pseudo)
            found.append(_instance(matched(evidence.unpack(best.eta), self.instance), self.instance))
            if progress is not None:
                progress(done + 1, times)
        return found

    def check(self, users: int = 200_000) -> Check:
        """How far the instance is from the steps of the log that it was fitted to, of its first `users` at least.

        The log is read again for it.
        """
        episodes = getattr(self.histories, "episodes", None)
        if episodes is None:
            raise InputError(
                "The order of steps is not known from histories alone; fit what read_log gives to check."
            )
        parts = islice(episodes(CHECKED), ceil(check_int("users", users) / CHECKED))
        return check(self.instance, parts)

    def _same_questions(self, histories: Histories) -> Evidence:
        seen = histories.distinct
        own = self.evidence
        return Evidence.of(seen.counts, seen.multiplicity, self.instance.n_types, own.departing, own.leaving)

    def words(self) -> list[str]:
        """What to say of every type in a line.

        >>> from departing.simulation.sample_log import sample_log
        >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], 0.3, categories=["sports", "economics"])
        >>> print("\\n".join(fit(sample_log(site, users=20000, seed=1).histories, types=2).words()))
        70% of users: love sports, leave after economics
        30% of users: love economics, leave after sports
        """
        return [describe_type(self.instance, x) for x in range(self.instance.n_types)]

    def __repr__(self) -> str:
        inst = self.instance
        shares = ", ".join(f"{share:.0%}" for share in inst.prior)
        return (
            f"<Fit of {self.histories.users} users: {inst.n_types} types ({shares}), {inst.n_categories} categories>"
        )


def fit(
    histories: Histories,
    types: int | Iterable[int] = range(1, 6),
    *,
    criterion: str = "bic",
    depart: float | None = None,
    depart_on_click: float | None = None,
    pseudo: float = 1.0,
    starts: int = 12,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fit:
    """The instance under which the histories are most likely.

    `types` is how many there are, or numbers to choose from, by `criterion`: `bic`, or `held-out`, the likelihood of
    users set aside. Departures are estimated where users stayed after a no-click; `depart=1` takes them for sure.
    Departures after a click are estimated if some user departed so; `depart_on_click=0` says that nobody does. Every
    chance is estimated as if `pseudo` users more had said yes and as many no, which keeps it off 0 and 1. Types are
    ordered by their share, the largest first.

    >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], depart=1.0)
    >>> from departing.simulation.sample_log import sample_log
    >>> found = fit(sample_log(site, users=20000, seed=1).histories, types=[1, 2, 3])
    >>> found
    <Fit of 20000 users: 2 types (70%, 30%), 2 categories>
    >>> found.instance.click.round(1)
    array([[0.9, 0.2],
           [0.3, 0.8]])
    """
    if not isinstance(histories, Histories):
        raise InputError(f"histories are {histories!r:.60}; expected Histories, such as read_log gives.")
    numbers = _numbers(types, histories)
    if criterion not in CRITERIA:
        raise InputError(f"criterion is {criterion!r}; allowed are {', '.join(CRITERIA)}.")
    pseudo = check_float("pseudo", pseudo, 1e-6, 1e6)
    starts, rng = check_int("starts", starts), np.random.default_rng([check_seed(seed), 6])
    questions, notes = _questions(histories.confirmed, depart, depart_on_click)
    seen = histories.confirmed
    aside = rng.binomial(seen.multiplicity, HELD_OUT)
    found: dict[int, Solution] = {}
    criteria = []
    for done, m in enumerate(numbers):
        evidence = Evidence.of(seen.counts, seen.multiplicity, m, *questions)
        found[m] = best = maximise(evidence, _starts(evidence, found.get(m - 1), starts, rng), pseudo, rng)
        criteria.append(_criterion(best, aside, pseudo))
        if progress is not None:
            progress(done + 1, len(numbers))
    chosen = min(criteria, key=lambda c: c.bic if criterion == "bic" else -c.held_out).types
    return _fit(histories, found[chosen], tuple(criteria), notes, pseudo)


def _numbers(types: int | Iterable[int], histories: Histories) -> list[int]:
    """The numbers of types to try."""
    if not len(histories.confirmed):
        if histories.pending.any():
            raise InputError(
                "It is not known of any step whether the user stayed, so there is nothing to fit; the log must last "
                "longer than inactive_after."
            )
        raise InputError("histories hold no user with a step; there is nothing to fit.")
    asked = list(types) if isinstance(types, Iterable) else [types]
    numbers = sorted({check_int("types", m, 1, MOST_TYPES) for m in asked})
    if not numbers:
        raise InputError("types is empty; expected a number of types, or several to choose from.")
    distinct = len(histories.confirmed)
    if numbers[-1] > distinct:
        raise InputError(
            f"types is {numbers[-1]}; at most {distinct} are allowed, as many as there are distinct histories."
        )
    return numbers


def _questions(
    histories: Histories, depart: float | None, depart_on_click: float | None
) -> tuple[tuple[Integers, Integers], list[str]]:
    """The categories whose departures are estimated, after a no-click and after a click, and what to say of it."""
    counts, times = histories.counts, histories.multiplicity
    every, none = np.arange(counts.shape[1]), np.zeros(0, np.int64)
    stays = int(times @ counts[..., STAY].sum(axis=1))
    leavers = int(times @ counts[..., CLICK_DEPART].sum(axis=1))
    if depart is not None and depart != 1:
        raise InputError(f"depart is {depart!r}; allowed are 1 (departure is sure) and None (estimated).")
    if depart_on_click is not None and depart_on_click != 0:
        raise InputError(f"depart_on_click is {depart_on_click!r}; allowed are 0 (nobody does) and None (estimated).")
    if depart == 1 and stays:
        raise InputError(
            f"Departure cannot be taken for sure (depart=1): users stayed after {stays:,} no-clicks; estimate it."
        )
    if depart_on_click == 0 and leavers:
        raise InputError(
            f"depart_on_click is 0, but {leavers} users departed after a click; leave it to be estimated."
        )
    notes = []
    if leavers:
        gone = int(times[~histories.censored].sum())
        notes.append(f"{leavers} of {gone} departures follow a click, so depart_on_click is estimated too.")
    if not stays and depart is None:
        notes.append("Nobody is known to have stayed after a no-click, so departure is taken for sure.")
    if histories.censored.all():
        notes.append("Nobody departed in these histories; what is said of departures rests on that alone.")
    return (every if stays else none, every if leavers else none), notes


def _starts(evidence: Evidence, fewer: Solution | None, starts: int, rng: np.random.Generator) -> Floats:
    """Where to begin: at random, and with each type of a solution with one type fewer split in two."""
    k, m = evidence.n_categories, evidence.n_types
    if m == 1:
        starts = 1
    etas = []
    for _ in range(starts):
        click, depart, last = rng.beta(2, 2, (3, k, m))
        etas.append(evidence.pack(Parameters(rng.dirichlet(np.full(m, 4.0)), click, depart, 0.2 * last)))
    for x in range(m - 1 if fewer is not None else 0):
        etas.append(evidence.pack(_split(fewer.parameters, x, rng)))  # type: ignore[union-attr]
    return np.array(etas)


def _split(parameters: Parameters, x: int, rng: np.random.Generator) -> Parameters:
    """The same with type x in two halves that differ a little."""
    prior = np.append(parameters.prior, parameters.prior[x] / 2)
    prior[x] /= 2
    parts = []
    for part in (parameters.click, parameters.depart, parameters.depart_on_click):
        shift = rng.normal(0.0, 0.5, len(part))
        wider = np.concatenate([part, _moved(part[:, [x]], shift[:, None])], axis=1)
        wider[:, x] = _moved(part[:, x], -shift)
        parts.append(wider)
    return Parameters(prior, *parts)


def _moved(chance: Floats, shift: Floats) -> Floats:
    """A chance with its log-odds shifted."""
    chance = np.clip(chance, 1e-12, 1 - 1e-12)
    return np.asarray(1 / (1 + (1 - chance) / chance * np.exp(-shift)))


def _criterion(best: Solution, aside: Integers, pseudo: float) -> Criterion:
    """How a solution does; the users `aside` of every row are told by the others."""
    evidence = best.evidence
    told, left = evidence.users - aside, aside.astype(np.float64)
    held_out = np.nan
    if told.any() and left.any():
        eta = maximise(replace(evidence, users=told), best.eta[None], pseudo).eta
        held_out = float(replace(evidence, users=left).value(eta[None], 0.0)[0] / left.sum())
    value = float(evidence.value(best.eta[None], 0.0)[0])
    d = evidence.n_parameters
    bic = float(d * np.log(evidence.users.sum()) - 2 * value)
    return Criterion(evidence.n_types, d, value, bic, held_out)


def _fit(
    histories: Histories, best: Solution, criteria: tuple[Criterion, ...], notes: list[str], pseudo: float
) -> Fit:
    """The fit at a solution, with types in order."""
    parameters = ordered(best.parameters)
    evidence = best.evidence
    eta = evidence.pack(parameters)
    _, _, information = evidence.slopes(eta[None], pseudo)
    curvature, directions = np.linalg.eigh(information[0])
    covariance = (directions / np.maximum(curvature, 1e-3)) @ directions.T
    names = {"categories": histories.categories} if histories.categories is not None else {}
    instance = Instance(parameters.prior, parameters.click, parameters.depart, parameters.depart_on_click, **names)
    value = float(evidence.value(eta[None], 0.0)[0])
    doubt = doubts(instance, evidence, eta, covariance, best)
    warnings = (*notes, *doubt.warnings)
    return Fit(instance, value, criteria, warnings, doubt.identified, histories, evidence, eta, covariance, pseudo)


def _instance(parameters: Parameters, like: Instance) -> Instance:
    return Instance(
        parameters.prior, parameters.click, parameters.depart, parameters.depart_on_click, like.categories, like.types
    )


def describe_type(instance: Instance, x: int) -> str:
    """What to say of type x in a line: what it loves, and what makes it leave."""
    likes = np.argsort(-instance.click[:, x], kind="stable")
    names = instance.categories
    loved = [names[a] for a in likes if instance.click[a, x] >= 0.9 * instance.click[likes[0], x]]
    verb = "love" if instance.click[likes[0], x] >= 0.5 else "like best"
    leave = instance.departure_probabilities[:, x]
    worst = names[int(leave.argmax())]
    words = f"{instance.prior[x]:.0%} of users: {verb} {_listed(loved)}"
    if leave.max() < SELDOM:
        words += ", seldom leave"
    elif instance.n_categories > 1 and leave.max() > 1.1 * leave.min():
        words += f", leave after {worst}"
    return words


def _listed(names: list[str]) -> str:
    """Names as a list in words."""
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
