"""Sensitivity of Bayes to the constants of its exploration: `python -m benchmarks.exploration_constants run`.

Every variant changes one constant of `departing.learning.exploration`; with `none` all are as they are. Instances are
those of `studies/fresh-problems.toml` with other seeds (from 41000, on which constants were compared before), one run
each. `tables FILE...` prints the table of docs/limitations/learner-benchmarks.md: ratios are paired with `none`.
"""

import json
import time
import tomllib
from argparse import ArgumentParser
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

import numpy as np

from departing.learning import exploration
from departing.learning.library import learner_from_dict
from departing.studies.definition import study_from_dict
from departing.studies.runner import optimum_record, run_learner

STUDY = Path(__file__).parents[1] / "studies" / "fresh-problems.toml"
FIRST_SEED, DRAWS = 41_000, 8
CLASSES = ("k3m2-sure", "k3m3-sure", "k4m2-sure", "k4m3-sure", "k2m2-unsure")  # 3 × 3 unsure takes four times as long
C = exploration
VARIANTS = {
    "none": {"COST_SLOPE": C.COST_SLOPE},
    "no COST_SLOPE": {"COST_SLOPE": 0.0},
    "2 COST_SLOPE": {"COST_SLOPE": 2 * C.COST_SLOPE},
    "no EXPLORED_DISCOUNT": {"EXPLORED_DISCOUNT": 1.0},
    "no earlier blocks": {"DISCOUNT": 0.0},
    "NORMAL_WEIGHT / 4": {"NORMAL_WEIGHT": C.NORMAL_WEIGHT / 4},
    "4 NORMAL_WEIGHT": {"NORMAL_WEIGHT": 4 * C.NORMAL_WEIGHT},
    "MAX_BLOCK_SHARE / 2": {"MAX_BLOCK_SHARE": C.MAX_BLOCK_SHARE / 2},
    "2 MAX_BLOCK_SHARE": {"MAX_BLOCK_SHARE": 2 * C.MAX_BLOCK_SHARE},
    "BUDGET / 2": {"BUDGET_CLICKS": C.BUDGET_CLICKS / 2, "BUDGET_SHARE": C.BUDGET_SHARE / 2},
    "2 BUDGET": {"BUDGET_CLICKS": 2 * C.BUDGET_CLICKS, "BUDGET_SHARE": 2 * C.BUDGET_SHARE},
    "one MAX_TRIALS": {"MAX_TRIALS": 1},
    "MAX_ALTERNATIVES / 2": {"MAX_ALTERNATIVES": C.MAX_ALTERNATIVES // 2},
    "MAX_PERIOD / 3": {"MAX_PERIOD": C.MAX_PERIOD / 3},
}


def jobs():
    """One run for each instance, in an order that interleaves the classes."""
    document = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    tables = [table for table in document["instances"] if table["name"] in CLASSES]
    document["instances"] = [table | {"first_seed": FIRST_SEED, "draws": DRAWS} for table in tables]
    study = study_from_dict(document, STUDY.parent, document["title"], str(STUDY))
    of_class = defaultdict(list)
    for job in study.jobs:
        if job.seed == 0:
            of_class[job.case.group].append(job)
    return [job for row in zip(*of_class.values(), strict=True) for job in row]


def run(output, variants, limit):
    """Append one line of JSON per run that `output` does not have yet."""
    known = {(row["case"], row["variant"]) for row in read([output])} if Path(output).exists() else set()
    with Path(output).open("a", encoding="utf-8") as file:
        for job in jobs()[:limit]:
            case = job.case
            missing = [name for name in variants if (case.name, name) not in known]
            optimum = optimum_record(case.instance, job.users) if missing else {}
            for name in missing:
                started = time.process_time()
                learner = learner_from_dict(job.learner.spec, case.instance, job.users, job.seed)
                with patch.multiple(exploration, **VARIANTS[name]):
                    record = run_learner(learner, case.instance, job.users, job.seed, optimum)[1]
                row = {"case": case.name, "class": case.group, "variant": name, "regret": record["regret"][-1]}
                print(json.dumps(row | {"cpu": time.process_time() - started}), file=file, flush=True)


def read(files):
    """Rows of all `files`."""
    return [json.loads(line) for file in files for line in Path(file).read_text(encoding="utf-8").splitlines()]


def tables(files):
    """Print mean and maximum regret of every variant, and of the same runs without a change."""
    regret = defaultdict(dict)
    for row in read(files):
        regret[row["variant"]][row["case"]] = row["regret"]
    for variant, runs in regret.items():
        both = [(runs[case], regret["none"][case]) for case in runs if case in regret["none"]]
        own, present = np.array(both).T
        ratio = np.log(np.maximum(own, 1.0) / np.maximum(present, 1.0))
        error = ratio.std(ddof=1) / len(ratio) ** 0.5 if len(ratio) > 1 else np.nan
        print(
            f"| {variant} | {len(both)} | {own.mean():,.0f} | {present.mean():,.0f} | "
            f"{ratio.mean():+.2f} ± {error:.2f} | {own.max():,.0f} | {present.max():,.0f} |"
        )


def main():
    """Run variants, or print the table."""
    parser = ArgumentParser()
    parser.add_argument("action", choices=("run", "tables"))
    parser.add_argument("files", nargs="*", default=["exploration-constants.jsonl"])
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    if options.action == "tables":
        tables(options.files)
    else:
        run(options.files[0], options.variants.split(","), options.limit)


if __name__ == "__main__":
    main()
