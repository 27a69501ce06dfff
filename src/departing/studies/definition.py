"""What a study is: instances, learners and seeds, as data."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from departing import __version__
from departing.learning.library import Spec, check_spec, short_form
from departing.model.errors import InputError
from departing.model.examples import EXAMPLES
from departing.model.files import check_fields, read_document
from departing.model.instance import Instance
from departing.model.validation import MAX_USERS, check_int, check_seed
from departing.studies.draws import Draws

_NAME = re.compile(r"[\w.-]{1,80}")  # of groups, which are in the names of files
MOST_SEEDS = 10**5


def key_of(document: dict[str, Any]) -> str:
    """A name for what `document` holds, the same for the same content and no other."""
    text = json.dumps(document | {"release": __version__}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Case:
    """An instance of a study, with its name and the group it belongs to."""

    name: str
    group: str
    instance: Instance


@dataclass(frozen=True)
class Contender:
    """A learner of a study: its name, and what it is made of."""

    name: str
    spec: Spec


@dataclass(frozen=True)
class Job:
    """One run: a learner on an instance with a seed.

    `key` names the run by all that makes its result, so it is the same in every study that has it.
    """

    case: Case
    learner: Contender
    seed: int
    users: int
    open_users: int | None
    delay: int

    @cached_property
    def key(self) -> str:
        """A name for this run."""
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
    learners: tuple[Contender, ...]
    open_users: int | None = None
    delay: int = 0

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
        """The groups of instances, in the order of the definition."""
        return tuple(dict.fromkeys(case.group for case in self.cases))

    def to_dict(self) -> dict[str, Any]:
        """The study with every instance written out: a definition that needs no other file and no drawing."""
        asked = {"open_users": self.open_users, "delay": self.delay or None}
        return {
            "title": self.title,
            "users": self.users,
            "seeds": list(self.seeds),
            **{name: value for name, value in asked.items() if value is not None},
            "instances": [{"name": case.name, "group": case.group} | case.instance.to_dict() for case in self.cases],
            "learners": [{"name": learner.name} | learner.spec for learner in self.learners],
        }


def load_study(path: str | os.PathLike[str]) -> Study:
    """Read a study from a TOML or JSON file."""
    return study_from_dict(read_document(path, "study"), Path(path).parent, Path(path).stem, repr(str(path)))


def study_from_dict(document: dict[str, Any], folder: Path, title: str, where: str) -> Study:
    """The study of a document; files of instances are looked for in `folder`."""
    required, optional = {"users", "instances", "learners"}, {"title", "seeds", "open_users", "delay"}
    check_fields(document, required, optional, where)
    title = document.get("title", title)
    if not isinstance(title, str) or not title.strip():
        raise InputError(f"{where}: title is {title!r:.80}; expected some words.")
    instances, learners = (_tables(document, name, where) for name in ("instances", "learners"))
    try:
        users = check_int("users", document["users"], most=MAX_USERS)
        open_users = document.get("open_users")
        together = None if open_users is None else check_int("open_users", open_users)
        delay = check_int("delay", document.get("delay", 0), 0, MAX_USERS)
        seeds = _seeds(document.get("seeds", 1))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    contenders = [_contender(table, f"{where}, learner {i}") for i, table in enumerate(learners, 1)]
    _differ([learner.name for learner in contenders], "learners", where)
    cases = [case for i, table in enumerate(instances, 1) for case in _cases(table, folder, f"{where}, instance {i}")]
    _differ([case.name for case in cases], "instances", where)
    return Study(title, users, seeds, tuple(cases), tuple(contenders), together, delay)


def _tables(document: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    tables = document[name]
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{where}: {name} is {tables!r:.80}; expected tables [[{name}]], one at least.")
    return tables


def _seeds(value: Any) -> tuple[int, ...]:
    """Seeds from a list, or so many from 0."""
    if not isinstance(value, list):
        return tuple(range(check_int("seeds", value, 1, MOST_SEEDS)))
    seeds = tuple(check_seed(seed) for seed in value)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {value!r:.80}; expected a number of seeds, or different ones in a list.")
    return seeds


def _differ(names: list[str], noun: str, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{where} has two {noun} of the name {name!r}; give each a name of its own.")
        seen.add(name)


def _contender(table: dict[str, Any], where: str) -> Contender:
    spec = check_spec({field: value for field, value in table.items() if field != "name"}, where)
    return Contender(_text(table.get("name", short_form(spec)), "name", where), spec)


def _text(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {field} is {value!r:.80}; expected a word.")
    return value


def _cases(table: dict[str, Any], folder: Path, where: str) -> Iterator[Case]:
    """The instances of one table: from a file, an example, written out, or drawn."""
    if "file" in table:
        yield _one(table, "file", lambda: Instance.load(folder / _text(table["file"], "file", where)), where)
    elif "example" in table:
        yield _one(table, "example", lambda: _example(table["example"], where), where)
    elif "prior" in table:
        fields = {field: value for field, value in table.items() if field not in ("name", "group")}
        yield _case(_given_name(table, where), table, Instance.from_dict(fields, where), where)
    else:
        draws = Draws.from_table(table, where)
        name = _given_name(table, where)
        for seed, instance in _drawn(draws, where):
            yield _case(f"{name}-{seed:02d}", {"group": name} | table, instance, where)


def _drawn(draws: Draws, where: str) -> list[tuple[int, Instance]]:
    try:
        return draws.drawn()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _one(table: dict[str, Any], field: str, make: Callable[[], Instance], where: str) -> Case:
    check_fields(table, {field}, {"name", "group"}, where)
    instance = make()
    return _case(table.get("name", Path(table[field]).stem), table, instance, where)


def _given_name(table: dict[str, Any], where: str) -> str:
    if "name" not in table:
        raise InputError(f"{where} lacks the field 'name'; or give an instance by 'file' or 'example'.")
    return _text(table["name"], "name", where)


def _case(name: Any, table: dict[str, Any], instance: Instance, where: str) -> Case:
    name = _text(name, "name", where)
    group = table.get("group", name)
    if not isinstance(group, str) or not _NAME.fullmatch(group) or group.startswith("."):
        raise InputError(f"{where}: group is {group!r:.80}; expected letters, digits, '-', '_' and '.' only.")
    return Case(name, group, instance)


def _example(name: Any, where: str) -> Instance:
    if not isinstance(name, str) or name not in EXAMPLES:
        raise InputError(f"{where}: example is {name!r:.80}; allowed are {', '.join(EXAMPLES)}.")
    return EXAMPLES[name]()
