"""The study: every peer and learner on every instance with every seed; results are kept and resumed."""

import json
import time
from itertools import product
from pathlib import Path

from benchmarks.peer_learners import instances
from benchmarks.peer_learners.block import Block
from departing.model.files import atomic_write

FOLDER = Path(__file__).with_name("results")  # tracked, so that the page can be made again without the runs
SEEDS = range(1000, 1010)  # no setting was tuned on these
ONLINE_USERS, ONLINE_SEEDS, ONLINE_INSTANCES = 10**5, range(1000, 1004), ("hard", "k3m2-sure/1")


def run_one(peer, name, seed, users=instances.USERS, online=False):
    """Run one peer or learner; return the expected regret at the checkpoints and the CPU time in seconds."""
    from benchmarks.peer_learners.settings import runner

    instance, (lower, upper) = instances.instance(name), instances.optimum(name)
    run = runner(peer)
    block, started = Block(instance), time.process_time()
    regret = run(block, (lower + upper) / 2, users, seed, online)
    return {"regret": [round(float(r), 3) for r in regret], "cpu": round(time.process_time() - started, 3)}


def load(peer, folder=FOLDER):
    """Return the kept results of a peer: setting, and runs by instance and seed."""
    path = folder / f"{peer}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"setting": None, "runs": {}}


def run_study(peers, online=False):
    """Run what is missing, seed by seed; results of another setting are dropped."""
    from benchmarks.peer_learners.settings import SETTINGS

    FOLDER.mkdir(exist_ok=True)
    users = ONLINE_USERS if online else instances.USERS
    for peer in peers:
        key, setting = peer + ("@online" if online else ""), SETTINGS.get(peer, {})
        kept = load(key)
        if kept["setting"] != setting:
            kept = {"setting": setting, "runs": {}}
        seeds, names = (ONLINE_SEEDS, ONLINE_INSTANCES) if online else (SEEDS, instances.names())
        for seed, name in product(seeds, names):
            runs = kept["runs"].setdefault(name, {})
            if str(seed) in runs:
                continue
            if not runs:
                run_one(peer, name, 0, 1000, online)  # compile and import before the time is measured
            runs[str(seed)] = run = run_one(peer, name, seed, users, online)
            with atomic_write(FOLDER / f"{key}.json") as part:
                part.write_text(json.dumps(kept), encoding="utf-8")
            print(f"{key:22} {name:14} {seed} {run['regret'][-1]:12,.0f} clicks {run['cpu']:7.2f} s", flush=True)
