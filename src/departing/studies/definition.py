"""Studies as data: instances, learners and seeds."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from departing import __version__
from departing.learning.library import Spec, check_spec, short_form
from departing.model.errors import InputError, errors_in
from departing.model.examples import EXAMPLES
from departing.model.files import check_fields, read_document
from departing.model.instance import Instance
from departing.model.validation import MAX_USERS, check_int, check_seed
from departing.studies.sampler import InstanceSampler

_GROUP_NAME = re.compile(r"[\w.-]{1,80}")  # groups are part of file names
MAX_SEEDS = 10**5  # against typing errors; a study of this size takes months


def key_of(document: dict[str, Any]) -> str:
    """Hash of `document` and of the release of the package."""
    text = json.dumps(document | {"release": __version__}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def bound_key(instance: Instance, users: int) -> str:
    """Hash of everything that determines the lower bound of an instance."""
    return key_of({"bound": instance.to_dict(), "users": users})


@dataclass(frozen=True)
class Case:
    """Instance of a study, with its name and its group."""

    name: str
    group: str
    instance: Instance


@dataclass(frozen=True)
class NamedLearner:
    """Learner of a study: its name, and the specification it is built from."""

    name: str
    spec: Spec


@dataclass(frozen=True)
class Job:
    """One run: a learner on an instance with a seed."""

    case: Case
    learner: NamedLearner
    seed: int
    users: int
    open_users: int | None
    delay: int

    @cached_property
    def key(self) -> str:
        """Hash of everything that determines the result, equal in all studies that contain this run."""
        return key_of(
            {
                "instance": self.case.instance.to_dict(),
                "learner": self.learner.spec,
                "seed": self.seed,
                "users": self.users,
                "open_users": self.open_users,
                "delay": self.delay,
            }
        )

    def __str__(self) -> str:
        return f"{self.learner.name} on {self.case.name} with seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """Every learner on every instance with every seed, for `users` users each."""

    title: str
    users: int
    seeds: tuple[int, ...]
    cases: tuple[Case, ...]
    learners: tuple[NamedLearner, ...]
    open_users: int | None = None
    delay: int = 0
    bound: bool = False  # compute the lower bound of every instance

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All runs, in the order of the definition."""
        return tuple(
            Job(case, learner, seed, self.users, self.open_users, self.delay)
            for case in self.cases
            for learner in self.learners
            for seed in self.seeds
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of instances, in the order of the definition."""
        return tuple(dict.fromkeys(case.group for case in self.cases))

    def to_dict(self) -> dict[str, Any]:
        """Return a definition with every instance written out, which needs no other file and no sampling."""
        optional = {"open_users": self.open_users, "delay": self.delay or None, "bound": self.bound or None}
        return {
            "title": self.title,
            "users": self.users,
            "seeds": list(self.seeds),
            **{name: value for name, value in optional.items() if value is not None},
            "instances": [{"name": case.name, "group": case.group} | case.instance.to_dict() for case in self.cases],
            "learners": [{"name": learner.name} | learner.spec for learner in self.learners],
        }


def load_study(path: str | os.PathLike[str]) -> Study:
    """Read a study from a TOML or JSON file.

    Parameters
    ----------
    path : path-like
        File that ends in .toml or .json. Instance files are looked up relative to its folder.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        If the file cannot be read, or a field is missing, unknown or invalid.
    """
    return study_from_dict(read_document(path, "study"), Path(path).parent, Path(path).stem, repr(str(path)))


def study_from_dict(document: dict[str, Any], folder: Path, title: str, where: str) -> Study:
    """Build a study from the fields of its file.

    Parameters
    ----------
    document : dict
        Fields of the study, as in a TOML file.
    folder : Path
        Folder to which the paths of instance files are relative.
    title : str
        Title if the document has none.
    where : str
        Name of the document in error messages.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        If a field is missing, unknown or invalid.
    """
    required, optional = {"users", "instances", "learners"}, {"title", "seeds", "open_users", "delay", "bound"}
    check_fields(document, required, optional, where)
    title = _text(document.get("title", title), "title", where)
    instances, learners = (_tables(document, name, where) for name in ("instances", "learners"))
    with errors_in(where):
        users = check_int("users", document["users"], most=MAX_USERS)
        open_users = document.get("open_users")
        open_users = None if open_users is None else check_int("open_users", open_users)
        delay = check_int("delay", document.get("delay", 0), 0, MAX_USERS)
        seeds = _seeds(document.get("seeds", 1))
        bound = _flag("bound", document.get("bound", False))
    named = [_learner(table, f"{where}, learner {i}") for i, table in enumerate(learners, 1)]
    _check_distinct([learner.name for learner in named], "learners", where)
    cases = [case for i, table in enumerate(instances, 1) for case in _cases(table, folder, f"{where}, instance {i}")]
    _check_distinct([case.name for case in cases], "instances", where)
    extended = next((case for case in cases if case.instance.extensions), None)
    if bound and extended is not None:
        field = extended.instance.extensions[0]
        raise InputError(
            f"{where}: bound is true, but the lower bound does not support {field} of {extended.name!r}."
        )
    for case in cases:
        if case.instance.unit != next(each for each in cases if each.group == case.group).instance.unit:
            raise InputError(f"{where}: group {case.group!r} has instances with different units; expected one unit.")
    return Study(title, users, seeds, tuple(cases), tuple(named), open_users, delay, bound)


def _tables(document: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    tables = document[name]
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}: {name} is {tables!r:.80}; expected at least one table [[{name}]].")
    return tables


def _seeds(value: Any) -> tuple[int, ...]:
    """Seeds from a list, or 0, 1, … from their number."""
    if not isinstance(value, list):
        return tuple(range(check_int("seeds", value, 1, MAX_SEEDS)))
    seeds = tuple(check_seed(seed) for seed in value)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {value!r:.80}; expected the number of seeds, or a list of distinct seeds.")
    return seeds


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{field} is {value!r:.80}; expected true or false.")
    return value


def _check_distinct(names: list[str], noun: str, where: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{where} has {count} {noun} named {name!r}; names must be distinct.")


def _learner(table: dict[str, Any], where: str) -> NamedLearner:
    spec = check_spec({field: value for field, value in table.items() if field != "name"}, where)
    return NamedLearner(_text(table.get("name", short_form(spec)), "name", where), spec)


def _text(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {field} is {value!r:.80}; expected a non-empty string.")
    return value


def _cases(table: dict[str, Any], folder: Path, where: str) -> Iterator[Case]:
    """Instances of one table: from a file, an example, written out, or sampled."""
    source = next((field for field in ("file", "example") if field in table), None)
    if source is not None:
        check_fields(table, {source}, {"name", "group"}, where)
        value = _text(table[source], source, where)
        instance = Instance.load(folder / value) if source == "file" else _example(value, where)
        yield _case({"name": Path(value).stem} | table, instance, where)
        return
    sampler = None if "prior" in table else InstanceSampler.from_table(table, where)
    if "name" not in table:
        raise InputError(f"{where} lacks the field 'name'; add it, or refer to an instance by 'file' or 'example'.")
    name = _text(table["name"], "name", where)
    if sampler is None:
        fields = {field: value for field, value in table.items() if field not in ("name", "group")}
        yield _case(table, Instance.from_dict(fields, where), where)
        return
    with errors_in(where):
        sampled = sampler.sample()
    for seed, instance in sampled:
        yield _case({"group": name} | table | {"name": f"{name}-{seed:02d}"}, instance, where)


def _case(table: dict[str, Any], instance: Instance, where: str) -> Case:
    name = _text(table["name"], "name", where)
    group = table.get("group", name)
    if not isinstance(group, str) or not _GROUP_NAME.fullmatch(group) or group.startswith("."):
        raise InputError(f"{where}: group is {group!r:.80}; expected letters, digits, '-', '_' and '.' only.")
    return Case(name, group, instance)


def _example(name: str, where: str) -> Instance:
    if name not in EXAMPLES:
        raise InputError(f"{where}: example is {name!r:.80}; expected one of {', '.join(EXAMPLES)}.")
    return EXAMPLES[name]()
