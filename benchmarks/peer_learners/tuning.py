"""Tuning: the settings of the grids on instances of the same classes that are not reported."""

import json

import numpy as np

from benchmarks.peer_learners import instances
from benchmarks.peer_learners.block import Block
from benchmarks.peer_learners.settings import GRIDS, is_default, runner

FINALISTS = 3
# Instances, users and seeds of the first stage, and of the second.
STAGES = (
    (("k3m2-sure/tune", "k3m3-sure/tune", "k2m2-unsure/tune"), 10**5, (0,)),
    (tuple(instances.tuning_names()), 10**5, (0, 1)),
)


def score(peer, setting, names, users, seeds):
    """Return the mean over instances and seeds of the share of the optimal clicks that is lost."""
    run, lost = runner(peer, setting), []
    for name in names:
        best = instances.optimum(name)[0]
        lost += [run(Block(instances.instance(name)), best, users, seed)[-1] / users / best for seed in seeds]
    return float(np.mean(lost))


def tune(peer, first, vary, report=lambda line: None):
    """Return the best setting: the grid first; its best three, the defaults, and variations of the best second."""
    scores = {}

    def ranked(settings, names, users, seeds):
        for setting in settings:
            if (key := (seeds, json.dumps(setting))) not in scores:
                scores[key] = score(peer, setting, names, users, seeds)
                report(json.dumps({"lost": round(scores[key], 5), "seeds": len(seeds), **setting}))
        return sorted(settings, key=lambda setting: scores[seeds, json.dumps(setting)])

    finalists = ranked(first, *STAGES[0])[:FINALISTS]
    best = ranked([*finalists, *(each for each in first if is_default(each) and each not in finalists)], *STAGES[1])
    best = ranked([best[0], *vary(best[0])], *STAGES[1])[0]
    return scores[STAGES[1][2], json.dumps(best)], best


def run_tuning(peers, report=print):
    """Tune peers; report every setting and the best one."""
    for peer in peers:
        result, setting = tune(peer, *GRIDS[peer], report=lambda line, peer=peer: report(peer, line, flush=True))
        report("BEST", peer, round(result, 5), json.dumps(setting), flush=True)
