"""Regret of learners on sites that change: `python -m benchmarks.changing_users STUDY [--seeds A-B] [--output FILE]`.

Studies are `sites` (jump, drift, season and stationary) and `catalogue` (a category added to a running site). Every
run is one line of JSON; `python -m benchmarks.changing_users tables FILE...` prints the tables of
docs/limitations/learner-benchmarks.md. Reported seeds start at 1000; constants were tuned on others.
"""

import json
import time
from argparse import ArgumentParser
from collections import defaultdict
from pathlib import Path

import numpy as np

import departing as dp
from benchmarks.common import Row
from departing.learning.sliding_window import SlidingWindow

USERS = 100_000
GROWTH = 0.2  # block size as a share of the users that count: twice the default, half of the time
NAMES = ["news", "sport", "music"]
PRIOR = [0.4, 0.6]
FIRST = dp.Instance([0.3, 0.7], [[0.75, 0.15], [0.4, 0.45], [0.45, 0.3]], depart=1.0, categories=NAMES)
# The first category loses its readers, and the third one gains them.
OTHER = FIRST.replace(click=[[0.45, 0.1], [0.35, 0.4], [0.7, 0.3]])

SITES = {
    "stationary": dp.NonStationaryInstance([FIRST], [0]),
    "jump": dp.NonStationaryInstance.jump(FIRST, OTHER, USERS // 2),
    "drift": dp.NonStationaryInstance.drift(FIRST, OTHER, USERS),
    "season": dp.NonStationaryInstance.seasonal(FIRST, OTHER, USERS // 2, USERS),
}
LEARNERS = {
    "Bayes": lambda seed: dp.Bayes(2, NAMES, seed, growth=GROWTH),
    "half_life='auto'": lambda seed: dp.Bayes(2, NAMES, seed, growth=GROWTH, half_life="auto"),
    "change_detection": lambda seed: dp.Bayes(2, NAMES, seed, growth=GROWTH, change_detection=True),
    "sliding window 10000": lambda seed: SlidingWindow(2, NAMES, seed, window=10_000, growth=GROWTH),
}

START = 20_000  # users before a category is added
TWO = dp.Instance(PRIOR, [[0.7, 0.3], [0.3, 0.5]], depart=1.0, categories=NAMES[:2])
ADDED = {"good": [0.55, 0.65], "equal": [0.7, 0.3], "bad": [0.2, 0.15]}


def grown(click):
    """The two categories and a third."""
    return dp.Instance(PRIOR, [*TWO.click.tolist(), click], depart=1.0, categories=NAMES)


def run_sites(seed, sites, learners):
    """Runs of the learners on the sites."""
    for site in sites:
        for name in learners:
            started = time.process_time()
            learner = LEARNERS[name](seed)
            run = dp.simulate(SITES[site], learner, USERS, seed)
            half = float(np.interp(USERS // 2, run.checkpoints, run.regret))
            yield {
                "site": site,
                "learner": name,
                "seed": seed,
                "regret": float(run.regret[-1]),
                "half": half,
                "changes": getattr(learner, "changes", []),
                "half_life": getattr(learner, "current_half_life", float("inf")),
                "cpu": time.process_time() - started,
            }


def run_catalogue(seed):
    """Runs of a learner to which a category is added, and of one that starts with all of them."""
    for kind, click in ADDED.items():
        started = time.process_time()
        full = grown(click)
        site = dp.NonStationaryInstance([TWO, full], [0, START])
        run = dp.simulate(site, dp.Bayes(2, NAMES[:2], seed, growth=GROWTH), USERS, seed)
        before = float(np.interp(START, run.checkpoints, run.regret))
        always = dp.simulate(full, dp.Bayes(2, NAMES, seed, growth=GROWTH), USERS, seed)
        early = float(np.interp(START, always.checkpoints, always.regret))
        shown = run.histories.counts[:, 2].sum(axis=1) @ run.histories.multiplicity
        yield {
            "category": kind,
            "seed": seed,
            "before": before,
            "after": float(run.regret[-1]) - before,
            "all": float(always.regret[-1]),
            "all_early": early,
            "shown": int(shown),
            "cpu": time.process_time() - started,
        }


def rows():
    """Regret relative to the stationary learner, and of an added category; one seed, so limits are wide."""
    regret = {
        (row["site"], row["learner"]): row["regret"] for row in run_sites(1000, ("stationary", "jump"), LEARNERS)
    }
    for learner in ("half_life='auto'", "change_detection"):
        for site, limit in (("stationary", 4.0), ("jump", 0.3)):
            ratio = regret[site, learner] / regret[site, "Bayes"]
            yield Row(f"{site}: regret of {learner} / Bayes", ratio, "", limit, False)
    for row in run_catalogue(1000):
        name = f"{row['category']} category added: regret / start with all"
        yield Row(name, (row["before"] + row["after"]) / row["all"], "", 4.0, False)


def tables(files):
    """Print the tables of all results in `files`."""
    rows = [json.loads(line) for file in files for line in Path(file).read_text(encoding="utf-8").splitlines()]
    groups = defaultdict(list)
    for row in rows:
        groups[(row.get("site") or row["category"], row.get("learner", ""))].append(row)
    for (first, learner), runs in groups.items():
        if learner:
            regret = np.array([run["regret"] for run in runs])
            alarms = sum(bool(run["changes"]) for run in runs)
            cpu = np.mean([run["cpu"] for run in runs])
            low, middle, high = np.percentile(regret, (5, 50, 95))
            error = regret.std(ddof=1) / len(regret) ** 0.5 if len(regret) > 1 else np.nan
            print(
                f"| {first} | {learner} | {len(runs)} | {regret.mean():,.0f} ± {error:,.0f} | {middle:,.0f} | "
                f"{low:,.0f} to {high:,.0f} | {alarms} | {cpu:.1f} |"
            )
        else:
            columns = ("before", "after", "all_early", "all", "shown")
            means = " | ".join(
                f"{np.mean(values):,.0f} ± {np.std(values, ddof=1) / len(values) ** 0.5:,.0f}"
                for values in ([run[name] for run in runs] for name in columns)
            )
            print(f"| {first} | {len(runs)} | {means} |")


def main():
    """Run a study, or print tables."""
    parser = ArgumentParser()
    parser.add_argument("study", choices=("sites", "catalogue", "tables"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--seeds", default="1000-1029")
    parser.add_argument("--sites", default=",".join(SITES))
    parser.add_argument("--learners", default=",".join(LEARNERS))
    parser.add_argument("--output")
    options = parser.parse_args()
    if options.study == "tables":
        return tables(options.files)
    first, last = map(int, options.seeds.split("-"))
    with Path(options.output or "/dev/stdout").open("a", encoding="utf-8") as output:
        for seed in range(first, last + 1):
            chosen = options.sites.split(","), options.learners.split(",")
            for row in run_sites(seed, *chosen) if options.study == "sites" else run_catalogue(seed):
                print(json.dumps(row), file=output, flush=True)
    return None


if __name__ == "__main__":
    main()
