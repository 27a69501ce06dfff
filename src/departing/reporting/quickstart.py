"""HTML page of the quickstart: from a log to a policy, online learning, and the example of the paper."""

import html
import os
from importlib import resources

from departing.evaluation.evaluate import Evaluation
from departing.fitting.likelihood import Parameters
from departing.fitting.plot import draw_fit
from departing.fitting.type_description import describe_types
from departing.fitting.type_matching import match_types
from departing.formatting import format_bounds, format_number, format_percent, format_significant
from departing.html_tables import table
from departing.model.files import atomic_write, check_suffix
from departing.model.instance import Floats, Instance
from departing.planning.plot.plan_plot import draw_plan
from departing.planning.plot.threshold_plot import draw_beliefs, draw_thresholds
from departing.plotting.figures import svg
from departing.policy.library import describe
from departing.quickstart_demo import (
    CONFIDENCE,
    INACTIVE_AFTER,
    LEARNING_USERS,
    LOG_DAYS,
    LOG_USERS,
    BlogDemo,
    LogDemo,
    QuickstartDemo,
)
from departing.reporting.page import page
from departing.studies.plot import draw_regret

GAIN_COLUMNS = ("policy", "clicks per reader", "95% interval", "gain of the recommended policy", "95% interval")
NUMERALS = {1: "One type", 2: "Two types", 3: "Three types", 4: "Four types"}


def write_page(demo: QuickstartDemo, path: str | os.PathLike[str]) -> None:
    """Write the demonstration as one self-contained HTML file."""
    check_suffix(path, (".html", ".htm"))
    text = page("Recommending to users who depart", _body(demo))
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def _body(demo: QuickstartDemo) -> str:
    log, blog = demo.log, demo.blog
    values = dict(blog.values)
    gain = values[describe(blog.best, blog.instance)].value - values["always sports"].value
    optimal, log_clicks = log.decision.value, log.check.clicks_per_user
    types = describe_types(log.fit.instance)
    template = resources.files("departing.reporting").joinpath("quickstart.html").read_text(encoding="utf-8")
    return template.format(
        log=log,
        blog=blog,
        optimal=optimal,
        log_clicks=log_clicks,
        ratio=[each / log_clicks for each in (optimal.value, optimal.lower, optimal.upper)],
        gain=gain * 1e6,
        bayes_regret=demo.regret[-1].final[0],
        days=LOG_DAYS,
        log_users=LOG_USERS,
        inactive_after=INACTIVE_AFTER,
        learning_users=LEARNING_USERS,
        n_types=NUMERALS.get(len(types), f"{len(types)} types"),
        types_line=html.escape("; ".join(types)),
        types_list="".join(f"<li>{html.escape(sentence)}</li>" for sentence in types),
        first_category=html.escape(log.first_category),
        fit=svg(draw_fit(log.fit, log.check)),
        plan=svg(draw_plan(log.decision.plan)),
        regret=svg(draw_regret("Regret of three learners", demo.regret)),
        beliefs=svg(draw_beliefs(blog.instance, blog.best)),
        thresholds=svg(draw_thresholds(blog.instance, *map(int, blog.best.phase_categories))),
        gains=table(GAIN_COLUMNS, log.decision.rows()),
        truth=_truth_table(log),
        instance=_instance_table(blog.instance),
        values=_policy_table(blog),
        runs=_run_table(blog),
    )


def _instance_table(instance: Instance) -> str:
    rows = [["share of readers", *(f"{share:g}" for share in instance.prior)]]
    for name, probabilities in zip(instance.categories, instance.click, strict=True):
        rows.append([f"click probability of {name}", *(f"{p:g}" for p in probabilities)])
    return table(["", *instance.types], rows)


def _truth_table(log: LogDemo) -> str:
    """Every fitted probability with its standard error, beside the true value."""
    fitted, errors, true = log.fit.instance, log.fit.stderr, log.truth
    order = [true.categories.index(name) for name in fitted.categories]
    click, depart, last = (part[order] for part in (true.click, true.depart, true.depart_on_click))
    same = match_types(Parameters(true.prior, click, depart, last), fitted)
    rows = [["share of readers", *_beside(fitted.prior, errors.prior, same.prior)]]
    for a, name in enumerate(fitted.categories):
        rows.append([f"click, {name}", *_beside(fitted.click[a], errors.click[a], same.click[a])])
        rows.append([f"departure, {name}", *_beside(fitted.depart[a], errors.depart[a], same.depart[a])])
    return table(["estimate ± standard error (truth)", *fitted.types], rows)


def _beside(fitted: Floats, errors: Floats, true: Floats) -> list[str]:
    return [f"{f:.3f} ± {e:.3f} ({t:g})" for f, e, t in zip(fitted, errors, true, strict=True)]


def _policy_table(blog: BlogDemo) -> str:
    def cells(value: Evaluation) -> list[str]:
        by_type = (format_bounds(each.lower, each.upper, 5) for each in value.by_type)
        return [format_bounds(value.lower, value.upper), *by_type]

    ranked = sorted(blog.values, key=lambda row: -row[1].lower)
    head = ["policy", "clicks per reader", *(f"type {name}" for name in blog.instance.types)]
    return table(head, [[policy, *cells(value)] for policy, value in ranked])


def _run_table(blog: BlogDemo) -> str:
    exact = dict(blog.values)[describe(blog.best, blog.instance)]
    rows = []
    for run, seconds in blog.runs:
        low, high = (format_number(end, 8) for end in run.interval(CONFIDENCE))
        rows.append(
            [f"{run.users:,}", format_number(run.mean, 8), f"{low} to {high}", f"{format_significant(seconds)} s"]
        )
    rows.append(["exact value", format_bounds(exact.lower, exact.upper), "", ""])
    return table(["readers", "clicks per reader", f"{format_percent(CONFIDENCE)} interval", "time"], rows)
