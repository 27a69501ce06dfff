"""Computations of `departing quickstart`: from a log to a policy, online learning, and the paper's example."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from departing.data.log import Log, read_log
from departing.decision.decision import Decision
from departing.decision.plan import plan
from departing.evaluation.evaluate import Evaluation, evaluate
from departing.fitting.fit import Fit, fit
from departing.fitting.goodness_of_fit import FitCheck
from departing.learning.base import LearnerBase
from departing.learning.bayes import Bayes
from departing.learning.lattice import LatticeUCB
from departing.learning.ucb import UCBHybrid
from departing.model.examples import blog, hard, magazine
from departing.model.instance import Instance
from departing.model.progress import Progress
from departing.planning.plan import compile_in_background
from departing.policy.greedy import Greedy
from departing.policy.library import describe
from departing.policy.protocol import Policy
from departing.policy.schedule import Fixed, Threshold
from departing.simulation.run import Run
from departing.simulation.sample_log import sample_log
from departing.simulation.simulate import simulate
from departing.studies.results import Curves

PARTS = 5
CONFIDENCE = 0.95
MAX_SWITCH = 40  # steps; the value of the paper's example peaks at 6
# The sizes keep the whole demonstration under about a minute.
LEARNING_USERS = 10**5
LOG_USERS, LOG_DAYS, INACTIVE_AFTER = 50_000, 60, "14 days"
LOG_GAP, RESAMPLES = 1e-3, 100


@dataclass(frozen=True)
class LogDemo:
    """A fit to a sampled log and its optimal policy, beside the instance that generated the log (`truth`).

    `policy_value` and `run` are the policy's value and a simulation under the truth, `optimum` is the optimal value
    under the truth, and `learner_clicks` the clicks per user of a learner that starts without the log.
    """

    truth: Instance
    events: int
    fit: Fit
    check: FitCheck
    decision: Decision
    policy_value: float
    run: Run
    optimum: float
    learner_clicks: float

    @property
    def first_category(self) -> str:
        """Name of the category that the policy shows first."""
        no_history = np.zeros((1, self.truth.n_categories, 4), np.int64)
        return str(self.fit.instance.categories[int(self.decision.policy.recommend(no_history)[0])])


@dataclass(frozen=True)
class BlogDemo:
    """The paper's example: values of policies, the best threshold policy, and timed simulations of it."""

    instance: Instance
    values: list[tuple[str, Evaluation]]
    best: Threshold
    runs: list[tuple[Run, float]]


@dataclass(frozen=True)
class QuickstartDemo:
    """All results of the demonstration."""

    log: LogDemo
    regret: list[Curves]
    blog: BlogDemo


def run_demo(progress: Progress) -> QuickstartDemo:
    """Compute the demonstration; `progress` is called after each of its parts."""
    with compile_in_background():  # the planner, which the last two parts need
        log, model, check = _read_and_fit(magazine())
        progress(1, PARTS)
        instance, values, best = _blog_values()
        progress(2, PARTS)
        blog_demo = BlogDemo(instance, values, best, _timed_runs(instance, best))
        progress(3, PARTS)
    regret = _learn()
    progress(4, PARTS)
    log_demo = _plan_from_log(magazine(), log, model, check)
    progress(5, PARTS)
    return QuickstartDemo(log_demo, regret, blog_demo)


def _blog_values() -> tuple[Instance, list[tuple[str, Evaluation]], Threshold]:
    instance = blog()
    sports, economics = instance.category_index("sports"), instance.category_index("economics")
    thresholds = [Threshold(first=sports, steps=n, then=economics) for n in range(MAX_SWITCH + 1)]
    best = max(thresholds, key=lambda policy: evaluate(instance, policy).lower)
    policies = (best, Fixed(sports), Fixed(economics), Greedy(instance))
    return instance, [(describe(policy, instance), evaluate(instance, policy)) for policy in policies], best


def _timed_runs(instance: Instance, policy: Policy) -> list[tuple[Run, float]]:
    """Simulations of growing numbers of users, with their durations in seconds."""
    simulate(instance, policy, users=1)  # compile before the clock starts
    runs = []
    for users in (10**3, 10**6, 10**9, 10**12):
        started = time.perf_counter()
        run = simulate(instance, policy, users=users, seed=1)
        runs.append((run, time.perf_counter() - started))
    return runs


def _read_and_fit(truth: Instance) -> tuple[Log, Fit, FitCheck]:
    """Sample the log of a site that recommends at random, read it and fit it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        sample_log(truth, LOG_USERS, seed=2, days=LOG_DAYS).save(path)
        log = read_log(path, inactive_after=INACTIVE_AFTER)
        model = fit(log, types=range(1, 5))
        return log, model, model.check()


def _plan_from_log(truth: Instance, log: Log, model: Fit, check: FitCheck) -> LogDemo:
    decision = plan(model, bootstrap=RESAMPLES)
    optimum = plan(truth, LOG_GAP)
    # The fit orders categories by name, the truth does not.
    relabelled = truth.relabel([truth.category_index(name) for name in model.instance.categories])
    policy = decision.policy
    run = simulate(relabelled, policy, users=10**6, seed=1)
    # Few large blocks: each block refits and plans, which takes longer than the simulation.
    learner = Bayes(truth.n_types, truth.n_categories, seed=1, users=LOG_USERS, growth=0.4)
    learner_clicks = simulate(truth, learner, LOG_USERS, seed=1, optimum=optimum).mean
    value = evaluate(relabelled, policy, LOG_GAP).value
    return LogDemo(truth, log.report.events, model, check, decision, value, run, optimum.value, learner_clicks)


def _learn() -> list[Curves]:
    """Regret of three learners that start without knowledge of the instance."""
    instance = hard()
    optimum = plan(instance)
    fixed_loss = optimum.value - instance.best_fixed[1]
    epsilon = float(instance.departure_probabilities.min())
    learners: dict[str, LearnerBase] = {
        "UCB-Hybrid": UCBHybrid.thresholds(users=LEARNING_USERS, epsilon=epsilon, horizon="paper"),
        "lattice": LatticeUCB(2, LEARNING_USERS, epsilon=epsilon),
        "Bayes": Bayes(2, 2, seed=1, users=LEARNING_USERS),
    }
    curves = []
    for name, learner in learners.items():
        run = simulate(instance, learner, LEARNING_USERS, seed=1, optimum=optimum)
        curves.append(Curves.of_run(name, run, "hard", fixed_loss))
    return curves
