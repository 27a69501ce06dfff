"""Learners by name: from the fields of a study, from the short form of the command line, and from files."""

import os
from importlib import import_module
from typing import Any

import numpy as np

from departing.learning.base import LearnerBase
from departing.learning.files import kind_of
from departing.model.errors import InputError
from departing.model.instance import Instance
from departing.model.validation import check_fraction, check_int, check_positive

Spec = dict[str, Any]  # the kind of a learner and its options

OPTIONS: dict[str, tuple[str, ...]] = {
    "bayes": ("types", "explore"),
    "explore-then-commit": ("types", "explore_users"),
    "fixed": ("category",),
    "greedy": ("types",),
    "kl-ulcb": (),
    "lattice": ("epsilon", "horizon", "scale"),
    "oracle": (),
    "thompson": (),
    "ucb-hybrid": ("policies", "scale", "epsilon", "tau", "eta", "horizon"),
    "ulcb": (),
    "uniform": (),
}
_WORDS = {
    ("bayes", "explore"): ("priced", "thompson", "none"),
    ("lattice", "scale"): ("practical", "proved"),
    ("ucb-hybrid", "policies"): ("thresholds", "fixed"),
    ("ucb-hybrid", "scale"): ("proved", "estimated"),
}
# Where the classes of saved learners are, by their kind.
_HOME = {
    "bayes": "bayes.Bayes",
    "explore-then-commit": "bayes.ExploreThenCommit",
    "frozen": "blocks.Frozen",
    "lattice": "lattice.LatticeUCB",
    "oracle": "blocks.Oracle",
    "refitted-greedy": "bayes.RefittedGreedy",
    "thompson": "baselines.Thompson",
    "ucb-hybrid": "ucb.UCBHybrid",
    "ulcb": "baselines.ULCB",
    "uniform": "baselines.Uniform",
}


def check_spec(spec: Spec, where: str = "The learner") -> Spec:
    """`spec` if a learner can be made of it: a known `kind`, and no other options than it has."""
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in OPTIONS:
        raise InputError(f"{where} has the kind {kind!r}; allowed are {', '.join(OPTIONS)}.")
    options = OPTIONS[kind]
    for name, value in spec.items():
        if name == "kind":
            continue
        if name not in options:
            allowed = f"allowed are {', '.join(options)}" if options else "it has none"
            raise InputError(f"{where} has the unknown option {name!r} for {kind!r}; {allowed}.")
        _check_option(kind, name, value, where)
    if kind == "fixed" and "category" not in spec:
        raise InputError(f"{where} is 'fixed' but lacks 'category', the category to show.")
    return spec


def _check_option(kind: str, name: str, value: Any, where: str) -> None:
    words = _WORDS.get((kind, name))
    if words is not None and value not in words:
        raise InputError(f"{where}: {name} is {value!r:.40}; allowed are {', '.join(words)}.")
    try:
        if name in ("types", "horizon", "explore_users"):
            check_int(name, value)
        if name == "epsilon":
            check_fraction(name, value)
        if name in ("tau", "eta"):
            check_positive(name, value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def learner_from_dict(spec: Spec, instance: Instance, users: int, seed: int) -> LearnerBase:
    """The learner that `spec` tells of, for `users` users of `instance`.

    `types` is the instance's number of types unless told, and `epsilon`, which the proved scale of UCB-Hybrid needs,
    its least chance of leaving at any step.

    >>> blog = Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]])
    >>> learner_from_dict({"kind": "fixed", "category": 1}, blog, users=100, seed=0).recommend([7, 8])
    array([1, 1])
    """
    kind = check_spec(spec)["kind"]
    options = {name: value for name, value in spec.items() if name != "kind"}
    k, types = instance.n_categories, int(options.get("types", instance.n_types))
    if kind == "bayes":
        return _make("bayes.Bayes", types, k, seed=seed, explore=options.get("explore", "priced"), users=users)
    if kind == "greedy":
        return _make("bayes.RefittedGreedy", types, k, seed=seed)
    if kind == "explore-then-commit":
        return _make(
            "bayes.ExploreThenCommit", types, k, users=users, seed=seed, explore_users=options.get("explore_users")
        )
    if kind == "lattice":
        options.setdefault("epsilon", float(np.clip(instance.departure_probabilities.min(), 1e-6, 1 - 1e-6)))
        return _make("lattice.LatticeUCB", k, users=users, seed=seed, **options)
    if kind == "ucb-hybrid":
        return _ucb_hybrid(options, instance, users)
    if kind in ("ulcb", "kl-ulcb"):
        return _make("baselines.ULCB", k, kl=kind == "kl-ulcb", seed=seed)
    if kind == "oracle":
        return _make("blocks.Oracle", instance)
    if kind == "fixed":
        from departing.policy.schedule import Fixed

        return _make("blocks.Frozen", Fixed(instance.category_index(options["category"])), k)
    return _make({"thompson": "baselines.Thompson", "uniform": "baselines.Uniform"}[kind], k, seed=seed)


def _ucb_hybrid(options: Spec, instance: Instance, users: int) -> LearnerBase:
    """UCB-Hybrid over thresholds of two categories, or over fixed categories."""
    over = options.pop("policies", "thresholds")
    if options.get("scale", "proved") == "proved" and "tau" not in options:
        options.setdefault("epsilon", float(np.clip(instance.departure_probabilities.min(), 1e-6, 1 - 1e-6)))
    if over == "thresholds":
        if instance.n_categories != 2:
            raise InputError(
                f"ucb-hybrid with thresholds is for 2 categories, not {instance.n_categories}; "
                "there it needs policies = 'fixed'."
            )
        return _make("ucb.UCBHybrid.thresholds", users=users, **options)
    if "horizon" in options:
        raise InputError("horizon is for ucb-hybrid with policies = 'thresholds', not 'fixed'.")
    return _make("ucb.UCBHybrid.fixed", instance.n_categories, users=users, **options)


def _make(home: str, *arguments: Any, **options: Any) -> LearnerBase:
    made = _found(home)(*arguments, **options)
    assert isinstance(made, LearnerBase)
    return made


def _found(home: str) -> Any:
    """The class (or its maker) at `home` in this folder, imported only when it is needed."""
    module, *names = home.split(".")
    found: Any = import_module(f"departing.learning.{module}")
    for name in names:
        found = getattr(found, name)
    return found


def parse_learner(text: str) -> Spec:
    """A learner from its short form: the kind, and options after a colon.

    >>> parse_learner("bayes:types=3,explore=thompson")
    {'kind': 'bayes', 'types': 3, 'explore': 'thompson'}
    """
    kind, _, rest = text.partition(":")
    if kind not in OPTIONS:
        raise InputError(f"There is no learner {kind!r}; known are {', '.join(OPTIONS)}.")
    spec: Spec = {"kind": kind}
    for part in rest.split(",") if rest else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(f"{part!r} in {text!r} is no option; write options like bayes:types=3,explore=none.")
        if name in spec:
            raise InputError(f"{text!r} has the option {name!r} twice.")
        spec[name] = _value(value)
    return check_spec(spec, repr(text))


def _value(text: str) -> int | float | str:
    for form in (int, float):
        try:
            return form(text)
        except ValueError:
            continue
    return text


def short_form(spec: Spec) -> str:
    """A spec as `parse_learner` reads it.

    >>> short_form({"kind": "bayes", "types": 3})
    'bayes:types=3'
    """
    options = ",".join(f"{name}={value}" for name, value in spec.items() if name != "kind")
    return f"{spec['kind']}:{options}" if options else str(spec["kind"])


def load_learner(path: str | os.PathLike[str]) -> LearnerBase:
    """Read a learner from the file its `save` wrote."""
    kind = kind_of(path)
    if kind not in _HOME:
        raise InputError(f"{str(path)!r} holds a learner of kind {kind!r}; known are {', '.join(_HOME)}.")
    loaded = _found(_HOME[kind]).load(path)
    assert isinstance(loaded, LearnerBase)
    return loaded
