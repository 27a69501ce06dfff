"""From a log to a policy and a learner, and the blog of the paper: worked out on the spot, to be told or printed."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group

from departing.data.log import Log, read_log
from departing.evaluation.evaluate import Evaluation, evaluate
from departing.fitting.fit import Fit, fit
from departing.fitting.goodness_of_fit import Check
from departing.learning.base import LearnerBase
from departing.learning.bayes import Bayes
from departing.learning.lattice import LatticeUCB
from departing.learning.ucb import UCBHybrid
from departing.model.examples import blog, hard, magazine
from departing.model.instance import Instance
from departing.planning.plan import compiled_meanwhile, plan
from departing.policy.greedy import Greedy
from departing.policy.library import describe
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Threshold
from departing.report.fitting import Gains, gain_table, gains
from departing.report.tables import EvaluationTable, evaluation_values, run_values
from departing.simulation.run import Progress, Run
from departing.simulation.sample_log import sample_log
from departing.simulation.simulate import simulate
from departing.studies.results import Curves

MOST_STEPS = 40
CONFIDENCE = 0.95
LEARNING_USERS = 10**5
SITE_USERS, SITE_DAYS, SILENCE = 50_000, 60, "14 days"
SITE_GAP, TIMES = 1e-3, 20


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
    gains: Gains
    planned: float
    run: Run
    best: float
    learnt: float

    @property
    def first(self) -> str:
        """The category to show first."""
        nothing = np.zeros((1, self.truth.n_categories, 4), np.int64)
        return str(self.fit.instance.categories[int(self.gains.plan.policy.recommend(nothing)[0])])

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
    """All that the page tells: what the log of a site says, learners, and the blog with its best time to switch."""

    site: Site
    learners: list[Curves]
    blog: Act
    best: Threshold
    runs: list[tuple[Run, float]]

    def values(self) -> dict[str, Any]:
        """The numbers as plain values."""
        words = describe(self.best, self.blog.instance)
        return {
            "blog": [evaluation_values(*row, distribution=False) for row in self.blog.rows],
            "best": words,
            "runs": [run_values(words, run, CONFIDENCE, seconds) for run, seconds in self.runs],
            "site": self.site.values(),
            "learners": [{"learner": curve.learner, "regret": float(curve.final[0])} for curve in self.learners],
        }

    def __rich__(self) -> Group:
        site, best = self.site, self.site.gains.worths[0]
        return Group(
            f"The log of a magazine whose readers were shown anything at random: {site.events:,} events.",
            *(f"  {words}" for words in site.fit.words()),
            f"Show {site.first} first, then go by what each reader does:",
            gain_table(site.gains),
            f"In truth, which is known here, it brings {site.planned:.3f} clicks per reader, and nothing brings more "
            f"than {site.best:.3f}; the log thinks {best.low:.2f} to {best.high:.2f}. A learner without a log brings "
            f"{site.learnt:.3f} to its first {SITE_USERS:,} readers.",
            f"\nLearning another site from {LEARNING_USERS:,} readers: clicks lost to somebody who knew all along.",
            *(f"  {curve.learner}: {curve.final[0]:,.0f}" for curve in self.learners),
            "\nThe blog of the paper; a reader leaves at the first article not clicked. Exactly:",
            self.blog.table(),
        )


def tell(progress: Progress) -> Story:
    """Work the story out, calling `progress` after each of its five parts."""
    with compiled_meanwhile():  # the planner, which the last two parts need
        log, found, check = read_and_fit(magazine())
        progress(1)
        first = blog()
        sports, economics = first.category_index("sports"), first.category_index("economics")
        switches = [Threshold(first=sports, steps=n, then=economics) for n in range(MOST_STEPS + 1)]
        best = max(switches, key=lambda policy: evaluate(first, policy).lower)
        act = _act(first, [best, Fixed(sports), Fixed(economics), Greedy(first)])
        progress(1)
        runs = simulate_more_and_more(first, best)
        progress(1)
    learners = learn()
    progress(1)
    site = look_at_a_log(magazine(), log, found, check)
    progress(1)
    return Story(site, learners, act, best, runs)


def simulate_more_and_more(instance: Instance, policy: Policy) -> list[tuple[Run, float]]:
    """Runs of ever more users, with the seconds that they take."""
    simulate(instance, policy, users=1)  # so that the times are those of the runs, not of getting ready
    runs = []
    for users in (10**3, 10**6, 10**9, 10**12):
        started = time.perf_counter()
        run = simulate(instance, policy, users=users, seed=1)
        runs.append((run, time.perf_counter() - started))
    return runs


def read_and_fit(truth: Instance) -> tuple[Log, Fit, Check]:
    """The log of a site that shows anything at random, read again, and fitted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        sample_log(truth, SITE_USERS, seed=2, days=SITE_DAYS).save(path)
        log = read_log(path, inactive_after=SILENCE)
        found = fit(log, types=range(1, 5))
        return log, found, found.check()


def look_at_a_log(truth: Instance, log: Log, found: Fit, check: Check) -> Site:
    """A plan on what was found, what it gains and what it is in truth worth; and a learner that has no log."""
    gained = gains(found, check.clicks, TIMES)
    best = plan(truth, SITE_GAP)
    # Categories of the log are in the order of their names, those of the truth are not.
    same = truth.relabel([truth.category_index(name) for name in found.instance.categories])
    policy = gained.plan.policy
    run = simulate(same, policy, users=10**6, seed=1)
    learner = Bayes(truth.n_types, truth.n_categories, seed=1, users=SITE_USERS, growth=0.4)  # few large blocks
    learnt = simulate(truth, learner, SITE_USERS, seed=1, optimum=best).mean
    planned = evaluate(same, policy, SITE_GAP).value
    events = log.report.events
    return Site(truth, events, found, check, gained, planned, run, best.value, learnt)


def learn() -> list[Curves]:
    """What learners lose who know nothing of a blog at first, beside the best single category."""
    instance = hard()
    optimum = plan(instance)
    fixed_loss = optimum.value - instance.best_fixed[1]
    epsilon = 1 - float(instance.click.max())
    learners: dict[str, LearnerBase] = {
        "UCB-Hybrid": UCBHybrid.thresholds(users=LEARNING_USERS, epsilon=epsilon),
        "lattice": LatticeUCB(2, LEARNING_USERS, epsilon=epsilon),
        "Bayes": Bayes(2, 2, seed=1, users=LEARNING_USERS),
    }
    curves = []
    for name, learner in learners.items():
        run = simulate(instance, learner, LEARNING_USERS, seed=1, optimum=optimum)
        curves.append(Curves(name, run.checkpoints.astype(np.float64), run.regret[None], ("hard",), fixed_loss, 0.0))
    return curves


def _act(instance: Instance, policies: list[Policy]) -> Act:
    return Act(instance, [(describe(policy, instance), evaluate(instance, policy)) for policy in policies])
