"""Tuning: the settings of the grids on instances of the same classes that are not reported."""

import json

import numpy as np

from benchmarks.peer_learners import instances, study
from benchmarks.peer_learners.block import Block
from benchmarks.peer_learners.settings import CHOSEN, GRIDS, SETTINGS, is_default, runner
from departing.model.files import atomic_write

FINALISTS = 2
# Instances, users and seeds of the first stage, and of the second. The second has the users of the report: the best
# exploration depends on their number.
STAGES = (
    (("k3m2-sure/tune", "k3m3-sure/tune", "k2m2-unsure/tune"), 10**5, (0,)),
    (tuple(instances.tuning_names()), instances.USERS, (0,)),
)
MAX_USERS = {"ppo": 10**5}  # a run with a million users takes up to a minute


def score(peer, setting, names, users, seeds):
    """Return the mean over instances and seeds of the share of the optimal clicks that is lost."""
    run, lost = runner(peer, setting), []
    for name in names:
        best = instances.optimum(name)[0]
        lost += [run(Block(instances.instance(name)), best, users, seed)[-1] / users / best for seed in seeds]
    return float(np.mean(lost))


def tune(peer, first, vary, kept, report):
    """Return the best setting: the grid first; its best ones, the defaults, and variations of the best second."""

    def ranked(settings, stage):
        names, users, seeds = STAGES[stage]

        def lost(setting):
            key = f"stage {stage + 1} {json.dumps(setting)}"
            if key not in kept:
                report(key, score(peer, setting, names, min(users, MAX_USERS.get(peer, users)), seeds))
            return kept[key]

        return sorted(settings, key=lost)

    finalists = ranked(first, 0)[:FINALISTS]
    best = ranked([*finalists, *(each for each in first if is_default(each) and each not in finalists)], 1)
    return ranked([best[0], *(each for each in vary(best[0]) if each != best[0])], 1)[0]


def run_tuning(peers):
    """Tune peers; keep and print every setting, and write the best one. What is kept is not repeated."""
    study.FOLDER.mkdir(exist_ok=True)
    for peer in peers:
        path = study.FOLDER / f"{peer}@tuning.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

        def report(key, lost, kept=kept, path=path, peer=peer):
            kept[key] = lost
            with atomic_write(path) as part:
                part.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            print(f"{peer}: {lost:.5f} lost, {key}", flush=True)

        SETTINGS[peer] = tune(peer, *GRIDS[peer], kept, report)
        print(f"{peer}: chosen {json.dumps(SETTINGS[peer])}", flush=True)
        with atomic_write(CHOSEN) as part:
            part.write_text(json.dumps(dict(sorted(SETTINGS.items())), indent=2) + "\n", encoding="utf-8")
