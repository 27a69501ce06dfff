"""Recommend to people who leave when they are disappointed.

The public names are imported when they are first used, so that `import departing` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from departing.data.log import Log, read_log
    from departing.data.movielens import movielens
    from departing.data.oulad import oulad
    from departing.evaluation.bounds import Bounds
    from departing.evaluation.evaluate import Distribution, Evaluation, evaluate
    from departing.fitting.fit import Fit, fit
    from departing.learning.bayes import Bayes
    from departing.learning.blocks import Frozen
    from departing.learning.lattice import LatticeUCB
    from departing.learning.library import load_learner
    from departing.learning.protocol import Learner
    from departing.learning.ucb import UCBHybrid
    from departing.model.belief import belief, predict
    from departing.model.errors import InputError
    from departing.model.families import random_instance
    from departing.model.histories import Histories
    from departing.model.instance import Instance
    from departing.offpolicy.off_policy_value import OffPolicyValue, off_policy_value
    from departing.planning.plan import Plan, plan
    from departing.policy.alpha import Alpha
    from departing.policy.greedy import Greedy
    from departing.policy.library import load_policy
    from departing.policy.protocol import Policy
    from departing.policy.schedule import Fixed, Threshold, Walk
    from departing.policy.table import Table
    from departing.simulation.compare import Comparison, compare
    from departing.simulation.run import Run
    from departing.simulation.sample_log import SampleLog, sample_log
    from departing.simulation.simulate import simulate

__version__ = "0.1.0"

_HOME = {
    "Alpha": "policy.alpha",
    "Bayes": "learning.bayes",
    "Bounds": "evaluation.bounds",
    "Comparison": "simulation.compare",
    "Distribution": "evaluation.evaluate",
    "Evaluation": "evaluation.evaluate",
    "Fit": "fitting.fit",
    "Fixed": "policy.schedule",
    "Frozen": "learning.blocks",
    "Greedy": "policy.greedy",
    "Histories": "model.histories",
    "InputError": "model.errors",
    "Instance": "model.instance",
    "LatticeUCB": "learning.lattice",
    "Learner": "learning.protocol",
    "Log": "data.log",
    "Plan": "planning.plan",
    "Policy": "policy.protocol",
    "Run": "simulation.run",
    "Table": "policy.table",
    "Threshold": "policy.schedule",
    "UCBHybrid": "learning.ucb",
    "OffPolicyValue": "offpolicy.off_policy_value",
    "SampleLog": "simulation.sample_log",
    "Walk": "policy.schedule",
    "belief": "model.belief",
    "compare": "simulation.compare",
    "evaluate": "evaluation.evaluate",
    "fit": "fitting.fit",
    "load_learner": "learning.library",
    "load_policy": "policy.library",
    "movielens": "data.movielens",
    "oulad": "data.oulad",
    "plan": "planning.plan",
    "predict": "model.belief",
    "random_instance": "model.families",
    "read_log": "data.log",
    "simulate": "simulation.simulate",
    "off_policy_value": "offpolicy.off_policy_value",
    "sample_log": "simulation.sample_log",
}

__all__ = [
    "Alpha",
    "Bayes",
    "Bounds",
    "Comparison",
    "Distribution",
    "Evaluation",
    "Fit",
    "Fixed",
    "Frozen",
    "Greedy",
    "Histories",
    "InputError",
    "Instance",
    "LatticeUCB",
    "Learner",
    "Log",
    "OffPolicyValue",
    "Plan",
    "Policy",
    "Run",
    "SampleLog",
    "Table",
    "Threshold",
    "UCBHybrid",
    "Walk",
    "belief",
    "compare",
    "evaluate",
    "fit",
    "load_learner",
    "load_policy",
    "movielens",
    "off_policy_value",
    "oulad",
    "plan",
    "predict",
    "random_instance",
    "read_log",
    "sample_log",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'departing' has no attribute {name!r}")
    return getattr(import_module(f"departing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
