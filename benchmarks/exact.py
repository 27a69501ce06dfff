"""Exact evaluation."""

import departing as dp
from benchmarks.common import Row, cpu_seconds
from departing.model.examples import blog
from departing.planning.plan import plan_within
from departing.planning.problem import PlanningProblem

# Types, categories, and the gap before `evaluate` used the bounds of the plan.
STAYS = [(5, 5, 26.8), (5, 10, 57.9)]


def rows():
    rows = []
    for name, policy in (
        ("always sports", dp.Fixed(1)),
        ("sports × 6, then economics", dp.Threshold(first=1, steps=6, then=0)),
        ("greedy", dp.Greedy(blog())),
    ):
        (seconds,) = cpu_seconds(lambda p=policy: dp.evaluate(blog(), p, gap=1e-12))
        gap = dp.evaluate(blog(), policy, gap=1e-12).gap
        what = f"evaluate to 1e-12, the paper's example, {name}"
        rows.append(Row(what, seconds * 1e3, "ms", 5, at_least=False, note=f"gap {gap:.1e}"))
    for family in ("uniform", "specialists"):
        for seed in range(5):
            instance = dp.random_instance(family, 3, 3, seed=seed, depart=0.3)
            greedy = dp.Greedy(instance)
            (seconds,) = cpu_seconds(lambda i=instance, g=greedy: dp.evaluate(i, g, gap=1e-6), repeats=3)
            gap = dp.evaluate(instance, greedy, gap=1e-6).gap
            what = f"evaluate greedy to 1e-6, K=M=3, depart 0.3, {family} {seed}"
            rows.append(Row(what, seconds, "s", 1, at_least=False, note=f"gap {gap:.1e}"))
    return [*rows, *(_plan(*each) for each in STAYS)]


def _plan(m, k, before):
    instance = dp.random_instance("sticky", m, k, seed=0)
    plan = plan_within(PlanningProblem(instance), 1e-6, 1000)
    gap = dp.evaluate(instance, plan, max_nodes=100_000).gap
    what = f"gap of evaluate for a plan of 1,000 nodes, relative to the plan's, long stays, M = {m}, K = {k}"
    note = f"gap {gap:.3g}, before: {before:g}"
    return Row(what, gap / plan.gap, "", 1.0, at_least=False, note=note)
