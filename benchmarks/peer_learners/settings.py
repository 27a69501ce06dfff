"""Settings of the peers: the grids of the tuning, and the ones that it chose."""

import json
from pathlib import Path

import numpy as np

from benchmarks.peer_learners.own import MAKERS, run_own
from benchmarks.peer_learners.protocol import run_blocks, run_online

EXPLORE = {
    "epsilon": ("--epsilon 0.05", "--epsilon 0.005", "--epsilon 0.001", "--epsilon 0.0002"),
    "bag": ("--bag 5", "--bag 10", "--bag 10 --epsilon 0.001", "--bag 20"),
    "rnd": (
        "--rnd 3 --epsilon 0.02",
        "--rnd 3 --epsilon 0.005",
        "--rnd 3 --epsilon 0.0005",
        "--rnd 3 --epsilon 0.0005 --rnd_alpha 1",
        "--rnd 10 --epsilon 0.0005",
    ),
}
RATES = ("-l 0.5", "-l 0.05")
BASES = {"click": (0.0, 1.0), "return": (0.0, 10.0)}
ALPHAS = (0.1, 0.3, 1.0, 3.0)

CHOSEN = Path(__file__).with_name("settings.json")  # written by `python -m benchmarks.peer_learners tune`
SETTINGS = json.loads(CHOSEN.read_text(encoding="utf-8"))


def vowpal_grid(explore, reward):
    """Features, learning rate and base of the cost, and the defaults; exploration is varied in the second stage.

    Equal weights halved the loss of epsilon-greedy exploration on the whole grid, so only the defaults have others.
    """
    first = [
        {"explore": EXPLORE[explore][1], "features": features, "options": rate, "base": base, "weights": weights}
        | {"reward": reward}
        for features in ("linear", "onehot", "joint")
        for rate in RATES
        for base in BASES[reward]
        for weights in ("inverse", "equal")
    ]
    first = [each for each in first if each["weights"] == "equal" or is_default(each)]
    return first, lambda best: [best | {"explore": option} for option in EXPLORE[explore]]


def linear_grid(reward):
    """Features and the exploration parameter; this is varied in the second stage."""
    first = [
        {"features": features, "alpha": alpha, "reward": reward}
        for features in ("linear", "log", "onehot")
        for alpha in ALPHAS
    ]
    return first, lambda best: [best | {"alpha": round(best["alpha"] * factor, 3)} for factor in (0.3, 3)]


def ppo_grid():
    """Features, learning rate and entropy bonus; the number of epochs is varied in the second stage."""
    first = [
        {"features": features, "learning_rate": rate, "ent_coef": entropy}
        for features in ("log", "onehot")
        for rate in (1e-3, 3e-3)
        for entropy in (0.0, 0.001, 0.01)
    ]
    return first, lambda best: [best | {"n_epochs": 8}]


def is_default(setting):
    """Return True for settings that use the defaults of the library, with linear or joint features."""
    defaults = {"options": "-l 0.5", "base": 0.0, "weights": "inverse", "alpha": 1.0}
    plain = all(setting.get(key, value) == value for key, value in defaults.items())
    return plain and "ent_coef" not in setting and setting["features"] in ("linear", "joint")


VOWPALS = (("epsilon", "click"), ("bag", "click"), ("epsilon", "return"), ("bag", "return"), ("rnd", "return"))
GRIDS = {f"vw-{explore}-{reward}": vowpal_grid(explore, reward) for explore, reward in VOWPALS}
GRIDS |= {f"linucb-{reward}": linear_grid(reward) for reward in BASES}
GRIDS |= {"ppo": ppo_grid()}
PEERS = [*GRIDS, "thompson-mabwiser"]
OWN = list(MAKERS)


def runner(name, setting=None):
    """Return a function of block, optimum, users, seed and `online` that gives the regret at the checkpoints.

    The libraries are imported here, so that one that is not installed does not stop the others.
    """
    if name in MAKERS:
        return lambda block, optimum, users, seed, online=False: run_own(name, block.instance, optimum, users, seed)
    setting = SETTINGS.get(name, {}) if setting is None else setting
    if name == "ppo":
        from benchmarks.peer_learners.ppo import run_ppo

        return lambda block, optimum, users, seed, online=False: run_ppo(block, optimum, users, seed, **setting)
    make = _library(name)

    def run(block, optimum, users, seed, online=False):
        peer = make(block.states, block.instance.n_categories, seed, **setting)
        try:
            rng = np.random.default_rng([seed, 77])
            return (run_online if online else run_blocks)(block, peer, optimum, users, rng)
        finally:
            peer.close()

    return run


def _library(name):
    """Import and return the class of a peer."""
    if name.startswith("vw-"):
        from benchmarks.peer_learners.vowpal import Vowpal

        return Vowpal
    from benchmarks.peer_learners.mab import LinUCB, Thompson

    return LinUCB if name.startswith("linucb") else Thompson
