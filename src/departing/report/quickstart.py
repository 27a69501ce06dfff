"""The story of the paper's blog, told with numbers worked out on the spot."""

import html
import os
import tempfile
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from rich.console import Group

from departing.data.log import read_log
from departing.evaluation.evaluate import Evaluation, evaluate
from departing.figures import BLUE, GREY, ORANGE, VIOLET, render
from departing.fitting.check import Check
from departing.fitting.fit import Fit, fit
from departing.fitting.likelihood import Parameters
from departing.fitting.order import matched
from departing.learning.bayes import Bayes
from departing.learning.committed import Committed
from departing.learning.lattice import LatticeUCB
from departing.learning.ucb import UCBHybrid
from departing.model.examples import blog, hard, magazine
from departing.model.files import replacing, suffix_of
from departing.model.instance import Floats, Instance
from departing.planning.plan import plan
from departing.policy.greedy import Greedy
from departing.policy.library import describe
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Threshold
from departing.report import pictures
from departing.report.fitting import draw as draw_fit
from departing.report.page import page
from departing.report.tables import (
    BY_TYPE,
    EvaluationTable,
    bracket,
    evaluation_values,
    number,
    ranked,
    run_values,
    significant,
)
from departing.simulation.run import Progress, Run
from departing.simulation.simulate import simulate
from departing.simulation.visits import visits
from departing.studies.picture import draw_regret
from departing.studies.results import Curves

MOST_STEPS = 40
CONFIDENCE = 0.95
BELIEFS = (
    "Every click shifts the belief towards type x (left). After {} clicks it pays to show economics, before it is "
    "the likelier next click (right): a reader of type x, once found, brings more clicks later."
)
SWITCHING = (
    "Clicks per reader against the number of sports articles before switching. Left: switching at once costs a lot. "
    "Right: the top enlarged; {} is best."
)
LEARNING_USERS = 10**5
LEARNING = (
    "Clicks lost against the number of readers, both on logarithmic scales. Dashed: somebody who knows which single "
    "category is best, and shows nothing else."
)
SITE_USERS, SITE_DAYS, SILENCE = 100_000, 60, "14 days"
SITE_GAP = 1e-3
FITTED = (
    "Found in the log: how often every type of reader clicks what, how often they leave, and how long readers stay, "
    "as observed and as fitted."
)
SURVIVAL = "The share of readers still here after every number of steps."


@dataclass(frozen=True)
class Act:
    """An instance and what policies are worth in it."""

    instance: Instance
    rows: list[tuple[str, Evaluation]]

    def table(self) -> EvaluationTable:
        """The policies, best first."""
        return EvaluationTable(self.instance, self.rows)


@dataclass(frozen=True)
class Site:
    """What a log of a site tells, beside the truth: a fit, its check, what is planned on it and learnt without it."""

    truth: Instance
    events: int
    fit: Fit
    check: Check
    planned: float
    run: Run
    best: float
    learnt: float

    def values(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {
            "events": self.events,
            "types": self.fit.words(),
            "log": self.check.clicks,
            "planned": self.planned,
            "simulated": self.run.mean,
            "best": self.best,
            "learnt": self.learnt,
        }


@dataclass(frozen=True)
class Story:
    """All that the page tells: the blog, its best time to switch, runs with their seconds, the magazine, its log."""

    blog: Act
    best: Threshold
    runs: list[tuple[Run, float]]
    magazine: Act
    site: Site
    learners: list[Curves]

    def values(self) -> dict[str, Any]:
        """The numbers as plain values."""
        words = describe(self.best, self.blog.instance)
        return {
            "blog": [evaluation_values(*row, distribution=False) for row in self.blog.rows],
            "best": words,
            "runs": [run_values(words, run, CONFIDENCE, seconds) for run, seconds in self.runs],
            "magazine": [evaluation_values(*row, distribution=False) for row in self.magazine.rows],
            "site": self.site.values(),
            "learners": [{"learner": curve.learner, "regret": float(curve.final[0])} for curve in self.learners],
        }

    def __rich__(self) -> Group:
        run, seconds = self.runs[-1]
        low, high = run.interval(CONFIDENCE)
        return Group(
            "A blog of economics and sports; a reader leaves at the first article not clicked.",
            self.blog.table(),
            f"Simulated with {run.users:.0e} readers in {seconds:.2g} s: {number(run.mean, 8)} clicks each, "
            f"{CONFIDENCE:.0%} sure between {number(low, 8)} and {number(high, 8)}.",
            "\nA magazine whose readers forgive half of the time, and where what they do tells who they are; without "
            "planning ahead:",
            self.magazine.table(),
            f"\nThe magazine's log, of readers who were shown anything at random: {self.site.events:,} events.",
            *(f"  {words}" for words in self.site.fit.words()),
            f"Clicks per reader: {self.site.check.clicks:.3f} in the log, {self.site.planned:.3f} with the policy "
            f"planned on what was found, {self.site.best:.3f} with the best policy there is.",
            f"\nLearning a blog from {LEARNING_USERS:,} readers: clicks lost to somebody who knows it all along.",
            *(f"  {curve.learner}: {curve.final[0]:,.0f}" for curve in self.learners),
        )


def tell(progress: Progress) -> Story:
    """Work the story out, calling `progress` after each of its seven parts."""
    first = blog()
    sports, economics = first.category("sports"), first.category("economics")
    switches = [Threshold(first=sports, steps=n, then=economics) for n in range(MOST_STEPS + 1)]
    best = max(switches, key=lambda policy: evaluate(first, policy).lower)
    progress(1)
    act = _act(first, [best, Fixed(sports), Fixed(economics), Greedy(first)])
    progress(1)
    simulate(first, best, users=1)  # so that the times below are those of the runs, not of getting ready
    runs = []
    for users in (10**3, 10**6, 10**9, 10**12):
        started = time.perf_counter()
        run = simulate(first, best, users=users, seed=1)
        runs.append((run, time.perf_counter() - started))
    progress(1)
    second = magazine()
    other = _act(second, [*(Fixed(a) for a in range(second.n_categories)), Greedy(second)])
    progress(1)
    for _, found in other.rows:
        _ = found.distribution  # worked out here, shown on the page
    progress(1)
    site = look_at_a_log(second)
    progress(1)
    learners = learn()
    progress(1)
    return Story(act, best, runs, other, site, learners)


def look_at_a_log(truth: Instance) -> Site:
    """The way of the data: a log of a site that shows anything at random, a fit, a plan and a run; and a learner."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        visits(truth, SITE_USERS, seed=1, days=SITE_DAYS).save(path)
        log = read_log(path, inactive_after=SILENCE)
        found = fit(log, types=range(1, 5))
        check = found.check()
    best = plan(truth, SITE_GAP)
    # Categories of the log are in the order of their names, those of the truth are not.
    names = found.instance.categories
    order = [names.index(name) for name in truth.categories]
    policy = plan(_reordered(found.instance, order), SITE_GAP).policy
    run = simulate(truth, policy, users=10**6, seed=1)
    learner = Bayes(truth.n_types, truth.n_categories, seed=1, users=SITE_USERS)
    lost = simulate(truth, learner, SITE_USERS, seed=1, optimum=best).regret[-1] / SITE_USERS
    planned = evaluate(truth, policy, SITE_GAP).value
    return Site(truth, log.report.events, found, check, planned, run, best.value, best.value - float(lost))


def _reordered(instance: Instance, order: list[int]) -> Instance:
    """The same instance with its categories in another order."""
    click, depart, last = (part[order] for part in (instance.click, instance.depart, instance.depart_on_click))
    names = [instance.categories[a] for a in order]
    return Instance(instance.prior, click, depart, last, names, instance.types)


def learn() -> list[Curves]:
    """What learners lose who know nothing of a blog at first, beside the best single category."""
    instance = hard()
    optimum = plan(instance)
    fixed_loss = optimum.value - float((instance.prior @ instance.fixed_values.T).max())
    epsilon = 1 - float(instance.click.max())
    learners: dict[str, Committed] = {
        "the paper's UCB-Hybrid": UCBHybrid.thresholds(users=LEARNING_USERS, epsilon=epsilon),
        "optimism over counts (lattice)": LatticeUCB(2, LEARNING_USERS, epsilon=epsilon),
        "inference and planning (Bayes)": Bayes(2, 2, seed=1, users=LEARNING_USERS),
    }
    curves = []
    for name, learner in learners.items():
        run = simulate(instance, learner, LEARNING_USERS, seed=1, optimum=optimum)
        curves.append(Curves(name, run.checkpoints.astype(np.float64), run.regret[None], ("hard",), fixed_loss, 0.0))
    return curves


def _act(instance: Instance, policies: list[Policy]) -> Act:
    return Act(instance, [(describe(policy, instance), evaluate(instance, policy)) for policy in policies])


def write_page(story: Story, path: str | os.PathLike[str]) -> None:
    """Write the story to one HTML file that needs nothing else."""
    suffix_of(path, (".html", ".htm"))
    text = page("Recommending to people who leave", _body(story))
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def _body(story: Story) -> str:
    """The page between its first and its last line."""
    first, best, second = story.blog.instance, story.best, story.magazine
    values = dict(story.blog.rows)
    ahead = values[describe(best, first)].value - values["always sports"].value
    places = ranked(second.rows)
    colours = (BLUE, ORANGE, GREY, VIOLET)
    curves = [(row[0], row[1].distribution.survival, colour) for row, colour in zip(places, colours, strict=True)]
    template = resources.files("departing.report").joinpath("quickstart.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        blog=_instance_table(first),
        beliefs=_figure(pictures.draw_beliefs(first, best), BELIEFS.format(best.steps)),
        blog_values=_policy_table(story.blog),
        steps=best.steps,
        extra=f"{ahead * 1e6:.1f}",
        switching=_figure(pictures.draw_switching(first, best.first, best.then), SWITCHING.format(best.steps)),
        runs=_run_table(story),
        winner=html.escape(places[0][0]),
        runner_up=html.escape(places[1][0]),
        ratio=f"{places[0][1].value / places[1][1].value:.2f}",
        magazine=_instance_table(second.instance),
        magazine_values=_policy_table(second),
        survival=_figure(pictures.draw_survival(curves), SURVIVAL),
        site_users=f"{SITE_USERS:,}",
        events=f"{story.site.events:,}",
        silence=SILENCE,
        words="".join(f"<li>{html.escape(words)}</li>" for words in story.site.fit.words()),
        truth=_truth_table(story.site),
        fitted=_figure(draw_fit(story.site.fit, story.site.check), FITTED),
        in_log=f"{story.site.check.clicks:.2f}",
        planned=f"{story.site.planned:.3f}",
        simulated=f"{story.site.run.mean:.3f} ± {story.site.run.stderr:.3f}",
        possible=f"{story.site.best:.3f}",
        learnt=f"{story.site.learnt:.3f}",
        users=f"{LEARNING_USERS:,}",
        lost=f"{story.learners[-1].final[0]:,.0f}",
        learning=_figure(draw_regret("Clicks lost while learning", story.learners), LEARNING),
    )


def _figure(figure: Any, caption: str) -> str:
    svg = render(figure).decode()
    return f"<figure><div>{svg[svg.index('<svg') :]}</div><figcaption>{html.escape(caption)}</figcaption></figure>"


def _rows(head: list[str], rows: list[list[str]]) -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"


def _instance_table(instance: Instance) -> str:
    rows = [["share of readers", *(f"{share:g}" for share in instance.prior)]]
    for name, chances in zip(instance.categories, instance.click, strict=True):
        rows.append([f"clicks {name}", *(f"{chance:g}" for chance in chances)])
    return _rows(["", *instance.types], rows)


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
    return _rows(["found ± error (truth)", *found.types], rows)


def _beside(found: Floats, errors: Floats, true: Floats) -> list[str]:
    return [f"{f:.3f} ± {e:.3f} ({t:g})" for f, e, t in zip(found, errors, true, strict=True)]


def _policy_table(act: Act) -> str:
    rows = [
        [words, bracket(found.lower, found.upper), *(bracket(by.lower, by.upper, BY_TYPE) for by in found.by_type)]
        for words, found in ranked(act.rows)
    ]
    return _rows(["policy", "clicks per reader", *(f"of {name}" for name in act.instance.types)], rows)


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
    return _rows(["readers", "clicks per reader", f"{CONFIDENCE:.0%} confidence", "time"], rows)
