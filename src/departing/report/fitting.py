"""A fit as tables, pictures and plain values: types, what they like and what makes them leave, and what to do."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.markup import escape
from rich.table import Table as RichTable

from departing.data.quality import LogReport
from departing.evaluation.evaluate import evaluate
from departing.fitting.fit import Fit
from departing.fitting.goodness_of_fit import Check
from departing.model.instance import Floats, Instance
from departing.planning.plan import Plan, plan
from departing.plotting.figures import BLUE, INK, ORANGE, save, shorten, tidy
from departing.policy.greedy import Greedy
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed
from departing.report.numbers import finite

SHOWN = 30  # categories in a table or picture
SECONDS, NODES = 20.0, 200_000  # for the plan, and counts that are followed to value it under every draw
FEWEST = 20  # draws of a bootstrap that make an interval
GAP = 1e-4  # of the value, within which policies are planned and valued


@dataclass(frozen=True)
class Gain:
    """What a policy is worth by a fit, in clicks per user, with a 95 % interval from the bootstrap."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Gains:
    """What the best policy by a fit is worth, beside others; `over[name]` is what it brings more than they do."""

    plan: Plan
    worths: tuple[Gain, ...]
    over: tuple[Gain, ...]


def gains(
    fit: Fit, seen: float | None, times: int, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Gains:
    """The best policy by the fit against greedy, the best fixed category and what the log did, `seen`."""
    instance = fit.instance
    gap = GAP * float(instance.fixed_values.max())
    made = plan(instance, gap, SECONDS)
    fixed = instance.best_fixed[0]
    policies: dict[str, Policy] = {
        "the best policy": made.policy,
        "greedy": Greedy(instance),
        f"always {instance.categories[fixed]}": Fixed(fixed),
    }
    again = fit.bootstrap(times, "resample", seed=seed, progress=progress)
    point = {name: evaluate(instance, policy, gap, NODES).value for name, policy in policies.items()}
    drawn = {name: _bounds(policy, again, gap) for name, policy in policies.items()}
    worths = [Gain(name, point[name], *_ends(*drawn[name])) for name in policies]
    best, *others = policies
    low, high = drawn[best]
    over = [
        Gain(name, point[best] - point[name], *_ends(low - drawn[name][1], high - drawn[name][0])) for name in others
    ]
    if seen is not None:
        worths.append(Gain("what the log did", seen, np.nan, np.nan))
        over.append(Gain("what the log did", point[best] - seen, *_ends(low - seen, high - seen)))
    return Gains(made, tuple(worths), tuple(over))


def _bounds(policy: Policy, instances: Sequence[Instance], gap: float) -> tuple[Floats, Floats]:
    """Lower and upper bounds of what a policy is worth under each of the instances."""
    found = [evaluate(one, policy, gap, NODES) for one in instances]
    return np.array([each.lower for each in found]), np.array([each.upper for each in found])


def _ends(low: Floats, high: Floats) -> tuple[float, float]:
    """The ends of an interval that holds 95 % of numbers of which bounds are known."""
    return float(np.quantile(low, 0.025)), float(np.quantile(high, 0.975))


def criteria_table(fit: Fit) -> RichTable:
    """The numbers of types that were tried."""
    table = RichTable(title="How many types?", title_justify="left")
    for name in ("types", "parameters", "log-likelihood", "BIC", "held out, a user"):
        table.add_column(name, justify="right")
    for row in fit.criteria:
        mark = "bold" if row.types == fit.instance.n_types else None
        bic = f"{row.bic:,.1f}"
        table.add_row(
            str(row.types), str(row.parameters), f"{row.log_likelihood:,.1f}", bic, f"{row.held_out:.5f}", style=mark
        )
    return table


def type_table(fit: Fit) -> RichTable:
    """For every category the chances of all types, each with its standard error, or a question mark where unknown."""
    instance, errors, sure = fit.instance, fit.errors, fit.identified
    table = RichTable(title="Chances and their standard errors", title_justify="left")
    table.add_column("category", overflow="fold")
    table.add_column("", no_wrap=True)
    for x, name in enumerate(instance.types):
        table.add_column(f"{escape(name)}\n{_with_error(instance.prior[x], errors.prior[x])}", justify="right")
    fields = ["click", "depart", *(["depart_on_click"] if len(fit.evidence.leaving) else [])]
    for a, name in enumerate(instance.categories[:SHOWN]):
        for i, field in enumerate(fields):
            values, error, known = (getattr(part, field)[a] for part in (instance, errors, sure))
            row = [
                _with_error(*pair) if is_known else f"{pair[0]:.3f} ?"
                for *pair, is_known in zip(values, error, known, strict=True)
            ]
            table.add_row(escape(name) if i == 0 else "", field, *row, end_section=field == fields[-1])
    if instance.n_categories > SHOWN:
        table.caption = f"{instance.n_categories - SHOWN} more categories are not shown."
    return table


def _with_error(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}" if error > 0 else f"{value:.3f}"


def gain_table(found: Gains) -> RichTable:
    """What policies are worth, and what the best brings more."""
    table = RichTable(title="Clicks per user", title_justify="left")
    table.add_column("policy", overflow="fold", min_width=16)
    for name in ("clicks", "95 %", "best is\nbetter by", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    more = {gain.name: gain for gain in found.over}
    for gain in found.worths:
        over = more.get(gain.name)
        last = ("", "") if over is None else (_clicks(over.value), _interval(over))
        table.add_row(escape(gain.name), _clicks(gain.value), _interval(gain), *last)
    return table


def _interval(gain: Gain) -> str:
    return "" if np.isnan(gain.low) else f"{_clicks(gain.low)} … {_clicks(gain.high)}"


def _clicks(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def log_values(report: LogReport) -> dict[str, Any]:
    """The report of a log as plain values."""
    irregular = [vars(each) | {"examples": list(each.examples)} for each in report.irregularities]
    return vars(report) | {"rejected": report.rejected, "irregularities": irregular, "notes": list(report.notes)}


def fit_values(fit: Fit, check: Check | None, found: Gains | None) -> dict[str, Any]:
    """All of it as plain values."""
    fields = ("prior", "click", "depart", "depart_on_click")
    low, high = fit.intervals()
    values: dict[str, Any] = {
        "users": fit.histories.users,
        "censored": int(fit.histories.multiplicity[fit.histories.censored].sum()),
        "types": fit.instance.n_types,
        "words": fit.words(),
        "instance": fit.instance.to_dict(),
        "errors": {name: getattr(fit.errors, name).tolist() for name in fields},
        "intervals": {name: [getattr(end, name).tolist() for end in (low, high)] for name in fields},
        "identified": {name: getattr(fit.identified, name).tolist() for name in fields},
        "log_likelihood": fit.log_likelihood,
        "criteria": [{name: finite(value) for name, value in vars(row).items()} for row in fit.criteria],
        "warnings": list(fit.warnings),
    }
    if check is not None:
        worst = [vars(cell) | {"z": cell.z} for cell in check.worst(10)]
        values["check"] = {"p_value": check.p_value, "worst": worst, "clicks_per_user": check.clicks}
        values["check"]["cut_short"] = check.cut_short
    if found is not None:
        values["best"] = found.plan.words()
        for name, rows in (("clicks", found.worths), ("best_brings_more", found.over)):
            values[name] = [
                {"name": row.name} | {field: finite(getattr(row, field)) for field in ("value", "low", "high")}
                for row in rows
            ]
    return values


def write_plot(fit: Fit, check: Check | None, path: str | os.PathLike[str]) -> None:
    """Draw a fit to a file that ends in .svg, .png or .pdf."""
    save(draw(fit, check), path, 130)


def draw(fit: Fit, check: Check | None) -> Figure:
    """Heat maps of clicks and departures, and how long users stay: observed against fitted."""
    instance = fit.instance
    rows = min(instance.n_categories, SHOWN)
    maps = [("click", "chance of a click", BLUE), ("leave", "chance of leaving when shown", ORANGE)]
    n = len(maps) + (check is not None)
    figure = Figure(figsize=(1.2 + 3.4 * n, 1.6 + 0.42 * max(rows, 4)), layout="constrained")
    panels = figure.subplots(1, n, squeeze=False)[0]
    for axes, (field, words, colour) in zip(panels, maps, strict=False):
        _heat(axes, getattr(instance, field)[:rows], fit, words, colour)
    if check is not None:
        _survival(panels[-1], check)
    return figure


def _heat(axes: Axes, values: Floats, fit: Fit, words: str, colour: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    instance = fit.instance
    ramp = LinearSegmentedColormap.from_list("ramp", ["white", colour])
    top = max(1.3 * float(values.max()), 0.2)
    edges = [np.arange(n + 1) - 0.5 for n in values.shape[::-1]]
    axes.pcolormesh(*edges, values, cmap=ramp, vmin=0, vmax=top)
    axes.invert_yaxis()
    for (a, x), value in np.ndenumerate(values):
        axes.text(
            x, a, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 * top else INK, fontsize=9
        )
    names = [
        f"{shorten(name, 0.9, 8)}\n{share:.0%}" for name, share in zip(instance.types, instance.prior, strict=True)
    ]
    axes.set_xticks(range(instance.n_types), names, fontsize=8)
    axes.set_yticks(
        range(len(values)), [shorten(name, 1.1, 9) for name in instance.categories[: len(values)]], fontsize=9
    )
    axes.set_title(words, fontsize=10, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _survival(axes: Axes, check: Check) -> None:
    last = int((check.here > 0.005).sum())
    steps = np.arange(last + 1)
    seen, forecast = check.here[: last + 1], check.forecast[: last + 1]
    axes.step(steps[: len(seen)], seen, where="post", color=INK, label="observed")
    axes.step(steps[: len(seen)], forecast, where="post", color=ORANGE, linestyle="--", label="fitted")
    axes.set_xlabel("steps")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("users still here", fontsize=10, loc="left")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
