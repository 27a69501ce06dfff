"""Instances of the study: two examples, two instances of each class of the open problems, and others for tuning."""

import tomllib
from functools import cache
from pathlib import Path

import departing as dp
from departing.model.examples import blog, hard
from departing.simulation.regret_curve import regret_gap
from departing.studies.sampler import InstanceSampler

USERS = 10**6
CLASSES = ("k3m2-sure", "k3m3-sure", "k4m2-sure", "k4m3-sure", "k2m2-unsure", "k3m3-unsure")
REPORT_SEED, TUNING_SEED = 9200, 9100
STUDY = Path(__file__).parents[2] / "studies" / "open-problems.toml"


@cache
def _samplers():
    tables = tomllib.loads(STUDY.read_text(encoding="utf-8"))["instances"]
    return {table["name"]: table for table in tables}


def _sample(name, first_seed, draws):
    """Draw instances of a class; in the second of each pair the best fixed category loses at least 0.5 %."""
    condition = {"fixed_loss": 0.005, "fixed_loss_share": 0.5}
    table = _samplers()[name] | condition | {"first_seed": first_seed, "draws": draws}
    return [instance for _, instance in InstanceSampler.from_table(table, name).sample()]


def names():
    """Names of the instances that are reported."""
    return ["blog", "hard", *(f"{name}/{i}" for name in CLASSES for i in range(2))]


def tuning_names():
    """Names of the instances that peers are tuned on, one of each class."""
    return [f"{name}/tune" for name in CLASSES]


@cache
def instance(name):
    """Return the instance of a name."""
    if name in ("blog", "hard"):
        return {"blog": blog, "hard": hard}[name]()
    kind, which = name.split("/")
    if which == "tune":
        return _sample(kind, TUNING_SEED, 2)[1]
    return _sample(kind, REPORT_SEED, 2)[int(which)]


@cache
def optimum(name):
    """Return the bounds on the value of the optimal policy, accurate enough for the regret of a million users."""
    result = dp.plan(instance(name), gap=regret_gap(USERS))
    return result.lower, result.upper
