"""The page of the quickstart: the readers of a magazine, from its log, and the blog of the paper."""

import html
import os
from importlib import resources
from string import Template

import numpy as np

from departing.fitting.likelihood import Parameters
from departing.fitting.type_matching import matched
from departing.model.files import atomic_write, check_suffix
from departing.model.instance import Floats, Instance
from departing.planning.plot.plan_plot import draw as draw_plan
from departing.plotting.figures import svg
from departing.policy.library import describe
from departing.report import plot as pictures
from departing.report.fitting import Gains
from departing.report.fitting import draw as draw_fit
from departing.report.numbers import bracket, number, significant
from departing.report.page import figure, page, table
from departing.report.quickstart_demo import (
    CONFIDENCE,
    LEARNING_USERS,
    SILENCE,
    SITE_DAYS,
    SITE_USERS,
    Act,
    Site,
    Story,
)
from departing.report.tables import BY_TYPE, ranked
from departing.studies.plot import draw_regret

NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four"}
BELIEFS = (
    "Every click shifts the belief towards type x (left). After {} clicks it pays to show economics, before it is "
    "the likelier next click (right): a reader of type x, once found, brings more clicks later."
)
SWITCHING = (
    "Clicks per reader against the number of sports articles before switching. Left: switching at once costs a lot. "
    "Right: the top enlarged; {} is best."
)
LEARNING = (
    "Clicks lost against the number of readers, both on logarithmic scales. Dashed: somebody who knows which single "
    "category is best, and shows nothing else."
)
FITTED = (
    "Found in the log: how often every type of reader clicks what, how often they leave, and how long readers stay, "
    "as observed and as fitted."
)
PLANNED = "The first steps of the policy: what to show, and the share of readers on each branch."
ANSWERS = ".answers { background: var(--block); border-radius: 8px; padding: 0.4rem 1.1rem; margin: 1.2rem 0; }"


def write_page(story: Story, path: str | os.PathLike[str]) -> None:
    """Write the story to one HTML file that needs nothing else."""
    check_suffix(path, (".html", ".htm"))
    text = page("Recommending to people who leave", _body(story))
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def _body(story: Story) -> str:
    """The page between its first and its last line."""
    site, first, best = story.site, story.blog.instance, story.best
    values = dict(story.blog.rows)
    ahead = values[describe(best, first)].value - values["always sports"].value
    worth = site.gains.worths[0]
    words = site.fit.words()
    template = resources.files("departing.report").joinpath("quickstart.html").read_text(encoding="utf-8")
    body = Template(template).substitute(
        days=SITE_DAYS,
        n_types=NUMBERS.get(len(words), str(len(words))),
        first_words=html.escape("; ".join(words)),
        show_first=html.escape(site.first),
        worth=f"{worth.value:.1f}",
        worth_low=f"{worth.low / site.check.clicks:.1f}",
        worth_high=f"{worth.high / site.check.clicks:.1f}",
        times_more=f"{worth.value / site.check.clicks:.1f}",
        in_log=f"{site.check.clicks:.1f}",
        learnt=f"{site.learnt:.1f}",
        learn_users=f"{SITE_USERS:,}",
        site_users=f"{SITE_USERS:,}",
        events=f"{site.events:,}",
        silence=SILENCE,
        words="".join(f"<li>{html.escape(each)}</li>" for each in words),
        fitted=figure(svg(draw_fit(site.fit, site.check)), FITTED),
        plan_gap=f"{site.gains.plan.gap:.3f}",
        plan=figure(svg(draw_plan(site.gains.plan)), PLANNED),
        gains=_gain_table(site.gains),
        planned=f"{site.planned:.3f}",
        simulated=f"{site.run.mean:.3f} ± {site.run.stderr:.3f}",
        possible=f"{site.best:.3f}",
        truth=_truth_table(site),
        users=f"{LEARNING_USERS:,}",
        lost=f"{story.learners[-1].final[0]:,.0f}",
        learning=figure(svg(draw_regret("Clicks lost while learning", story.learners)), LEARNING),
        blog=_instance_table(first),
        beliefs=figure(svg(pictures.draw_beliefs(first, best)), BELIEFS.format(best.steps)),
        blog_values=_policy_table(story.blog),
        steps=best.steps,
        extra=f"{ahead * 1e6:.1f}",
        switching=figure(svg(pictures.draw_switching(first, best.first, best.then)), SWITCHING.format(best.steps)),
        runs=_run_table(story),
    )
    return f"<style>{ANSWERS}</style>{body}"


def _gain_table(found: Gains) -> str:
    """What policies are worth by the fit, and what the best brings more."""
    more = {gain.name: gain for gain in found.over}
    rows = []
    for gain in found.worths:
        sure = "" if np.isnan(gain.low) else f"{gain.low:.2f} to {gain.high:.2f}"
        over = more.get(gain.name)
        ahead = ["", ""] if over is None else [f"{over.value:.2f}", f"{over.low:.2f} to {over.high:.2f}"]
        rows.append([gain.name, f"{gain.value:.2f}", sure, *ahead])
    return table(["policy", "clicks per reader", "95 %", "the best brings more", "95 %"], rows)


def _instance_table(instance: Instance) -> str:
    rows = [["share of readers", *(f"{share:g}" for share in instance.prior)]]
    for name, chances in zip(instance.categories, instance.click, strict=True):
        rows.append([f"clicks {name}", *(f"{chance:g}" for chance in chances)])
    return table(["", *instance.types], rows)


def _truth_table(site: Site) -> str:
    """Every chance that was found, with its error, beside what it is."""
    found, errors = site.fit.instance, site.fit.errors
    true = site.truth
    order = [true.categories.index(name) for name in found.categories]
    click, depart, last = (part[order] for part in (true.click, true.depart, true.depart_on_click))
    same = matched(Parameters(true.prior, click, depart, last), found)
    rows = [["share of readers", *_beside(found.prior, errors.prior, same.prior)]]
    for a, name in enumerate(found.categories):
        rows.append([f"clicks {name}", *_beside(found.click[a], errors.click[a], same.click[a])])
        rows.append([f"departs after {name}", *_beside(found.depart[a], errors.depart[a], same.depart[a])])
    return table(["found ± error (truth)", *found.types], rows)


def _beside(found: Floats, errors: Floats, true: Floats) -> list[str]:
    return [f"{f:.3f} ± {e:.3f} ({t:g})" for f, e, t in zip(found, errors, true, strict=True)]


def _policy_table(act: Act) -> str:
    rows = [
        [words, bracket(found.lower, found.upper), *(bracket(by.lower, by.upper, BY_TYPE) for by in found.by_type)]
        for words, found in ranked(act.rows)
    ]
    return table(["policy", "clicks per reader", *(f"of {name}" for name in act.instance.types)], rows)


def _run_table(story: Story) -> str:
    exact = dict(story.blog.rows)[describe(story.best, story.blog.instance)]
    rows = []
    for run, seconds in story.runs:
        low, high = run.interval(CONFIDENCE)
        rows.append(
            [
                f"{run.users:,}",
                number(run.mean, 8),
                f"{number(low, 8)} to {number(high, 8)}",
                f"{significant(seconds)} s",
            ]
        )
    rows.append(["exactly", bracket(exact.lower, exact.upper), "", ""])
    return table(["readers", "clicks per reader", f"{CONFIDENCE:.0%} confidence", "time"], rows)
