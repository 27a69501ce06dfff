"""The lanes engine against the random numbers alone, NumPy and Gymnasium."""

import os

import gymnasium
import numpy as np

import departing as dp
from benchmarks.common import Row, cpu_seconds, wall_seconds
from benchmarks.draws import sum_of_words
from benchmarks.peers import PLAIN, gymnasium_loop, numpy_with_compaction
from departing.evaluation.traversal import first_level, traverse
from departing.kernels.random import stream

STEPS = 60_000_000
WALK, THEN = [0, 1, 1, 0, 1, 0], 1


def greedy_table(instance, entries):
    """Table of the greedy categories on the first levels of counts, most likely counts first."""
    counts, categories = [], []
    for level in traverse(first_level(instance, dp.Greedy(instance), instance.prior)):
        likely = np.argsort(-level.weights.sum(axis=1))[:entries]
        level.counts, level.weights = level.counts[likely], level.weights[likely]
        counts.append(level.counts)
        categories.append(level.categories)
        if sum(map(len, counts)) >= entries:
            break
    best = int((instance.fixed_values @ instance.prior).argmax())
    return dp.Table(np.concatenate(counts)[:entries], np.concatenate(categories)[:entries], fallback=dp.Fixed(best))


def users_for(instance, policy, steps):
    run = dp.simulate(instance, policy, users=200_000, engine="lanes")
    return int(steps / (run.steps / run.users))


def rows():
    rows = []
    state = stream(np.uint64(1), np.uint64(0))
    for types, categories in ((2, 2), (5, 10)):
        for depart in (1.0, 0.5, 0.1):
            instance = dp.random_instance("uniform", types, categories, seed=3, depart=depart)
            policy, table = dp.Walk(WALK, then=THEN), greedy_table(instance, 2000)
            env = gymnasium.make(PLAIN, instance=instance)
            runs, totals = {}, {}
            for name, chosen in (("walk", policy), ("table", table)):
                users = users_for(instance, chosen, STEPS)
                runs[name] = lambda p=chosen, n=users, i=instance: dp.simulate(
                    i, p, users=n, engine="lanes", threads=1
                )
                totals[name] = runs[name]().steps
            few = users_for(instance, policy, 30_000_000)
            counted = numpy_with_compaction(instance, WALK, THEN, few, 1)
            words, walked, tabled, arrays, loop = cpu_seconds(
                lambda: sum_of_words(state, STEPS),
                runs["walk"],
                runs["table"],
                lambda i=instance, n=few: numpy_with_compaction(i, WALK, THEN, n, 1),
                lambda e=env: gymnasium_loop(e, WALK, THEN, 30_000),
            )
            base = STEPS / words
            rate, table_rate = totals["walk"] / walked, totals["table"] / tabled
            where = f"K={categories} M={types} depart={depart:g}"
            speed = f"{rate / 1e6:.0f} M steps/s; draws {base / 1e6:.0f} M/s"
            rows += [
                Row(f"lanes / draws, {where}", rate / base, "", 0.35, note=speed),
                Row(
                    f"lanes / draws with a Table, {where}",
                    table_rate / base,
                    "",
                    0.175,
                    note=f"{table_rate / 1e6:.0f} M",
                ),
                Row(
                    f"lanes / NumPy, {where}",
                    rate / (counted / arrays),
                    "×",
                    1.5,
                    note=f"{counted / arrays / 1e6:.0f} M",
                ),
                Row(f"lanes / Gymnasium, {where}", rate * loop / 30_000, "×", 1000, note=f"{30 / loop:.0f} k"),
            ]
    rows.append(two_threads())
    return rows


def two_threads():
    instance = dp.random_instance("uniform", 2, 2, seed=3, depart=0.5)
    policy = dp.Walk([0, 1, 1], then=0)
    users = users_for(instance, policy, 4 * STEPS)
    one, two = wall_seconds(
        lambda: dp.simulate(instance, policy, users=users, engine="lanes", threads=1),
        lambda: dp.simulate(instance, policy, users=users, engine="lanes", threads=2),
    )
    free = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return Row("two threads / one", one / two, "×", 1.7, note=free)
