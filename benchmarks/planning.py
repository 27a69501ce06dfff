"""Time to plan to a gap, compared with SARSOP on the same instances, and recommendations per second."""

import subprocess
import sys
import time
from unittest.mock import patch

import numpy as np

import departing as dp
from benchmarks.common import Row, cpu_seconds
from benchmarks.recorded import SARSOP, overlaps, recorded, sure
from departing.planning import problem
from departing.planning.faces import Faces
from departing.planning.plan import plan_within
from departing.planning.problem import Deadline, PlanningProblem
from departing.planning.search import Search

ROWS = 10**6

# instance, gap, limit in seconds
TARGETS = [
    *((f"a{s}", 1e-9, 1e-3) for s in (0,)),
    *((f"{family}{s}", 1e-6, 0.01) for family in "bcd" for s in range(3)),
    *((f"e{s}", gap, limit) for gap, limit in ((1e-3, 0.01), (1e-6, 0.1)) for s in range(3)),
    *((f"f{s}", gap, limit) for gap, limit in ((1e-3, 0.05), (1e-6, 2.5)) for s in range(3)),
    *((f"g{s}", gap, limit) for gap, limit in ((0.05, 1.2), (1e-3, 25.0)) for s in range(3)),
    *((f"h{s}", 1e-6, 0.02) for s in range(3)),
]
MORE = [
    *((f"specialists M = K = {m}, seed {s}", ("specialists", m, s), gap, limit)
      for m, gap, limit in ((4, 1e-6, 0.1), (6, 1e-6, 20.0), (8, 1e-4, 1.5)) for s in range(3)),
    *((f"sure departure, M = {m}, K = {k}, seed {s}", ("sure", m, k, s), 1e-6, limit)
      for m, k, limit in ((100, 10, 0.01), (60, 60, 0.4), (10, 100, 0.1)) for s in range(3)),
]  # fmt: skip
# Long stays: types, categories and seed, CPU seconds, limit of the gap, and the gap before faces were searched.
STAYS = [
    ((10, 20, 0), 12, 1.6, 5.26),
    ((10, 20, 1), 12, 5.5, 9.33),
    ((10, 10, 0), 12, 0.21, 0.238),
    ((5, 10, 0), 12, 0.045, 0.0996),
    ((10, 20, 0), 60, 0.80, 4.82),
    ((10, 20, 1), 60, 2.8, 7.86),
    ((10, 10, 0), 60, 0.12, 0.160),
    ((5, 10, 0), 60, 0.014, 0.0541),
    ((15, 20, 0), 60, 1.36, 4.09),
    ((20, 20, 0), 60, 5.6, 16.83),
    ((20, 20, 1), 60, 5.8, 17.33),
]
FACE_NODES = 20_000  # expanded on faces to compare numbers of threads


# Time limit of 2 s where users stay long: types, categories and seed, and the CPU seconds before the extraction of
# the policy counted.
LIMITED = [((5, 5, 0), 2.85), ((5, 5, 1), 3.36), ((3, 3, 1), 3.37)]


def _instance(key):
    if key[0] == "sure":
        return sure(*key[1:])
    return dp.random_instance("specialists", key[1], key[1], seed=key[2])


def _timed(instance, gap, limit):
    repeats = 7 if limit < 0.5 else 3 if limit < 3 else 1
    plan = dp.plan(instance, gap, seconds=max(2 * limit, 1))
    return plan, cpu_seconds(lambda: dp.plan(instance, gap, seconds=max(2 * limit, 1)), repeats=repeats)[0]


def _row(what, instance, gap, limit, note=""):
    plan, seconds = _timed(instance, gap, limit)
    reached = seconds if plan.gap <= gap else float("inf")
    bounds = f"[{plan.lower:.6f}, {plan.upper:.6f}]"
    return plan, Row(f"{what} to {gap:g}", reached, "s", limit, at_least=False, note=f"{bounds}{note}")


def rows():
    table = []
    for name, gap, limit in TARGETS:
        plan, row = _row(name, recorded(name), gap, limit, _sarsop(name))
        table.append(row)
        if name in SARSOP:
            assert overlaps(name, plan), f"{name}: {plan} contradicts SARSOP's bounds"
    table += [_row(what, _instance(key), gap, limit)[1] for what, key, gap, limit in MORE]
    table += [_long_stay(*each) for each in STAYS] + [_threads()]
    table += _extensions()
    return table + [_limited(*each) for each in LIMITED] + [_early_stop()] + _recommending() + [_memory()]


def _long_stay(key, seconds, limit, before):
    m, k, seed = key
    with patch.object(problem, "perf_counter", time.process_time):
        plan = dp.plan(dp.random_instance("sticky", m, k, seed=seed), 1e-6, seconds=seconds)
    what = f"long stays, M = {m}, K = {k}, seed {seed}, after {seconds} CPU s"
    note = f"[{plan.lower:.4f}, {plan.upper:.4f}], before: {before:g}"
    return Row(what, plan.gap, "gap", limit, at_least=False, note=note)


def _segmented(key, segments=10):
    """A recorded instance with ten segments, whose priors scatter around its own."""
    instance, rng = recorded(key), np.random.default_rng(0)
    priors = rng.dirichlet(3 * instance.n_types * instance.prior + 0.1, segments)
    names = [f"segment {i}" for i in range(segments)]
    return instance.replace(prior=None, segments=dp.Segments(names, rng.dirichlet(np.full(segments, 2.0)), priors))


def _extensions():
    """Rewards, a horizon, and ten segments relative to ten plans."""
    table = []
    for name, gap, limit in (("e0", 1e-6, 0.3), ("f0", 1e-4, 0.3)):
        rewards = recorded(name)
        rewards = rewards.replace(reward=np.linspace(1.0, 10.0, rewards.n_categories))
        table.append(_row(f"{name} with rewards of 1 to 10", rewards, gap, limit)[1])
        horizon = recorded(name).replace(horizon=20)
        table.append(_row(f"{name} with a horizon of 20", horizon, gap, limit)[1])
    for name, gap in (("e0", 1e-2), ("e0", 1e-4), ("f0", 1e-2), ("g0", 0.3)):
        instance = _segmented(name)
        alone = [instance.in_segment(segment) for segment in instance.segments.names]
        together, apart = cpu_seconds(
            lambda instance=instance, gap=gap: dp.plan(instance, gap),
            lambda alone=alone, gap=gap: [dp.plan(each, gap) for each in alone],
            repeats=3,
        )
        what = f"{name} with ten segments to {gap:g}, time relative to ten plans"
        note = f"{together:.3f} s against {apart:.3f} s"
        table.append(Row(what, together / apart, "times", 1.0, at_least=False, note=note))
    return table


def _threads():
    """Expanded nodes of faces per second of wall time, with two threads relative to one."""
    stays, never, seconds, found = (
        PlanningProblem(dp.random_instance("sticky", 10, 20, seed=0)),
        Deadline(np.inf),
        [],
        [],
    )
    for threads in (2, 1, 2):  # the first one compiles
        search = Search(stays, never)
        search.run(1e-6, never, 500)
        faces, started = Faces(search, threads), time.perf_counter()
        found.append(faces.solve(search, never, FACE_NODES).upper)
        seconds.append(time.perf_counter() - started)
    assert len(set(found)) == 1, f"the number of threads changes the bound: {found}"
    return Row("expansions per second on faces, two threads relative to one", seconds[1] / seconds[2], "times", 1.6)


def _limited(key, before):
    m, k, seed = key
    with patch.object(problem, "perf_counter", time.process_time):
        plan = dp.plan(dp.random_instance("sticky", m, k, seed=seed), 1e-9, seconds=2.0)
    what = f"time limit of 2 s, long stays, M = {m}, K = {k}, seed {seed}"
    return Row(what, plan.seconds, "CPU s", 2.4, at_least=False, note=f"before: {before:g} CPU s")


def _early_stop():
    stays = PlanningProblem(dp.random_instance("sticky", 10, 20, seed=2))
    search, deadline = Search(stays, Deadline(np.inf)), Deadline(np.inf)
    search.run(1e-6, deadline, 1000)
    loss = 100 * max(1 - plan_within(stays, 1e-6, 1000).lower / search.lower, 0.0)
    what = "value lost by extracting the policy after 1,000 nodes, M = 10, K = 20, seed 2"
    return Row(what, loss, "%", 0.1, at_least=False, note="before: 0.418 %")


def _sarsop(name):
    if name not in SARSOP:
        return ""
    lower, upper = SARSOP[name]
    return f", SARSOP in 20 s [{lower:g}, {upper:g}]"


def _recommending():
    rng = np.random.default_rng(0)
    rows = []
    plan = dp.plan(recorded("e1"))
    counts = np.zeros((ROWS, 5, 4), np.int64)
    counts[..., :2] = rng.integers(0, 4, (ROWS, 5, 2))
    (seconds,) = cpu_seconds(lambda: plan.policy.recommend(counts), repeats=3)
    what = f"recommend, {len(plan.policy.vectors)} alpha vectors, M = 5"
    rows.append(Row(what, ROWS / seconds / 1e6, "M rows/s", 1))
    table = dp.Table(
        np.unique(counts[:5000], axis=0), np.zeros(len(np.unique(counts[:5000], axis=0)), int), dp.Fixed(0)
    )
    (seconds,) = cpu_seconds(lambda: table.recommend(counts), repeats=3)
    rows.append(Row(f"recommend, a table of {len(table.counts)} counts, K = 5", ROWS / seconds / 1e6, "M rows/s", 5))
    return rows


def _fresh(code, **environment):
    """Output of a fresh process."""
    import os

    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def _memory():
    code = (
        "import resource, departing as dp; dp.plan(dp.random_instance('sticky', 10, 20, seed=1), 1e-6, seconds=30);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    return Row("memory of 30 s of search, M = 10, K = 20", float(_fresh(code)) / 1e6, "GB", 2, at_least=False)
