"""Learners by kind: from the fields of a study, from the short form of the command line, and from files."""

import os
from importlib import import_module
from typing import Any

from departing.learning.base import LearnerBase
from departing.learning.files import read_learner
from departing.learning.registry import LEARNERS
from departing.model.errors import InputError, errors_in
from departing.model.instance import Instance

Spec = dict[str, Any]  # the kind of a learner and its options


def learner_class(kind: object, where: str = "The learner") -> type[LearnerBase]:
    """Return the class of a kind."""
    if not isinstance(kind, str) or kind not in LEARNERS:
        raise InputError(f"{where} has the kind {kind!r}; expected one of {', '.join(LEARNERS)}.")
    module, name = LEARNERS[kind].split(".")
    learner: type[LearnerBase] = getattr(import_module(f"departing.learning.{module}"), name)
    return learner


def check_spec(spec: Spec, where: str = "The learner") -> Spec:
    """Return `spec` if it has a known `kind` and valid options of that kind."""
    learner = learner_class(spec.get("kind"), where)
    for name, value in spec.items():
        if name == "kind":
            continue
        if name not in learner.options:
            expected = f"expected one of {', '.join(learner.options)}" if learner.options else "it has no options"
            raise InputError(f"{where} has the unknown option {name!r} of {learner.kind!r}; {expected}.")
        option = learner.options[name]
        if isinstance(option, tuple):
            if value not in option:
                raise InputError(f"{where}: {name} is {value!r:.40}; expected one of {', '.join(option)}.")
            continue
        with errors_in(where):
            option(name, value)
    for name in learner.required:
        if name not in spec:
            raise InputError(f"{where} has no option {name!r}, which the kind {learner.kind!r} requires.")
    return spec


def learner_from_dict(spec: Spec, instance: Instance, users: int, seed: int) -> LearnerBase:
    """Create the learner described by `spec`, for `users` users of `instance`.

    Parameters
    ----------
    spec : dict
        `kind`, and options of that kind. `types` defaults to the number of types of the instance, and `epsilon` to
        its smallest departure probability.
    instance : Instance
        The instance that the learner will be simulated on.
    users : int
        Total number of users, for learners that use it.
    seed : int
        Seed, for learners that use randomness.

    Returns
    -------
    LearnerBase

    Raises
    ------
    InputError
        If the kind is unknown or an option is invalid.

    Examples
    --------
    >>> blog = Instance([0.4, 0.6], [[0.5, 0.28], [0.4, 0.39]])
    >>> learner_from_dict({"kind": "frozen", "category": 1}, blog, users=100, seed=0).recommend([7, 8])
    array([1, 1])
    """
    options = {name: value for name, value in check_spec(spec).items() if name != "kind"}
    return learner_class(spec["kind"]).from_options(options, instance, users, seed)


def parse_learner(text: str) -> Spec:
    """Parse the short form of a learner: the kind, and options after a colon.

    >>> parse_learner("bayes:types=3,explore=thompson")
    {'kind': 'bayes', 'types': 3, 'explore': 'thompson'}
    """
    kind, _, rest = text.partition(":")
    if kind not in LEARNERS:
        raise InputError(f"Unknown learner {kind!r}; expected one of {', '.join(LEARNERS)}.")
    spec: Spec = {"kind": kind}
    for part in rest.split(",") if rest else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(f"{part!r} in {text!r} is not an option; write bayes:types=3,explore=none, for example.")
        if name in spec:
            raise InputError(f"{text!r} has the option {name!r} twice.")
        spec[name] = _parse_value(value)
    return check_spec(spec, repr(text))


def _parse_value(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def short_form(spec: Spec) -> str:
    """Return a spec as text that `parse_learner` reads.

    >>> short_form({"kind": "bayes", "types": 3})
    'bayes:types=3'
    """
    options = ",".join(f"{name}={value}" for name, value in spec.items() if name != "kind")
    return f"{spec['kind']}:{options}" if options else str(spec["kind"])


def load_learner(path: str | os.PathLike[str]) -> LearnerBase:
    """Read a learner of any kind from the file written by its `save`.

    Parameters
    ----------
    path : path-like
        A JSON file.

    Returns
    -------
    LearnerBase
        The learner, which continues bit for bit.

    Raises
    ------
    InputError
        If the file is not a saved learner.
    """
    return learner_class(read_learner(path)[0], repr(str(path))).load(path)
