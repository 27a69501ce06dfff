"""Parsing and validation of arguments."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from departing.model.errors import InputError

if TYPE_CHECKING:
    from departing.model.instance import Instance
    from departing.model.non_stationary import NonStationaryInstance
    from departing.policy.protocol import Policy


def exclusive(option: str, **others: object) -> None:
    """Raise if one of the `others` is given (not None) together with `option`."""
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{option} and --{name.replace('_', '-')} cannot be combined; omit one of them.")


def load_instance(name: str) -> "Instance":
    """Load an instance from a file, or an example by its name."""
    from departing.model.examples import EXAMPLES
    from departing.model.instance import Instance

    if name in EXAMPLES:
        return EXAMPLES[name]()
    if not Path(name).suffix:
        known = ", ".join(EXAMPLES)
        raise InputError(f"There is no instance {name!r}; expected a .toml or .json file, or one of {known}.")
    return Instance.load(name)


def load_site(name: str) -> "Instance | NonStationaryInstance":
    """Load an instance or a site that changes from a file, or an example by its name."""
    from departing.model.non_stationary import load_instance_or_site

    return load_instance_or_site(name) if Path(name).suffix else load_instance(name)


def load_policy(text: str, instance: "Instance") -> "tuple[Policy, str]":
    """Parse a policy; return it with its description, preceded by its file if it was loaded from one."""
    from departing.policy.library import describe, parse_policy

    policy = parse_policy(text, instance.categories, instance)
    description = describe(policy, instance)
    return policy, f"{text}: {description}" if Path(text).suffix.lower() in (".toml", ".json") else description


def check_files(output: Path | None = None, plot: Path | None = None, suffixes: Sequence[str] | None = None) -> None:
    """Raise before the computation if a file cannot be written; `suffixes` of the output: documents by default."""
    from departing.model.files import DOCUMENT_SUFFIXES, check_writable

    if output is not None:
        check_writable(output, tuple(suffixes or DOCUMENT_SUFFIXES))
    if plot is not None:
        from departing.plotting.figures import FIGURE_SUFFIXES

        check_writable(plot, FIGURE_SUFFIXES)


def check_resamples(bootstrap: int, optional: bool = False) -> int:
    """Number of bootstrap resamples; 0 is accepted if the bootstrap is `optional`."""
    from departing.model import validation

    return 0 if optional and bootstrap == 0 else validation.check_resamples(bootstrap)


def parse_int(parameter: str, text: str) -> int:
    """Parse an integer, also if written like 1e12 or 1_000_000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if not value.is_integer() or abs(value) > 1e18:
        raise InputError(f"{parameter} is {text!r:.40}; expected an integer such as 1000000 or 1e6.", parameter)
    return int(value)


def parse_share(parameter: str, text: str) -> float:
    """Parse a share: a number from 0 to 1, or a percentage such as 10%."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number)
    except ValueError:
        share = float("nan")
    if not 0 <= share <= (100 if percent else 1):
        raise InputError(f"{parameter} is {text:.40}; expected a share from 0 to 1, such as 0.1 for 10 %.", parameter)
    return share / 100 if percent else share


def parse_types(text: str) -> list[int]:
    """Parse numbers of types such as 3, 1-5 or 1,2,4."""
    from departing.model.validation import MAX_TYPES

    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = [int(end) if end.isdecimal() else 0 for end in ((first, last) if dash else (first, first))]
        if not 0 < ends[0] <= ends[1] <= MAX_TYPES:
            expected = f"expected numbers from 1 to {MAX_TYPES}, such as 3, 1-5 or 2,4"
            raise InputError(f"types is {text!r:.40}; {expected}.", "types")
        numbers += range(ends[0], ends[1] + 1)
    return numbers


def split_names(given: Sequence[str] | None) -> list[str] | None:
    """Split the values of an option at commas; the option may be repeated.

    >>> split_names(["country,device", "campaign"])
    ['country', 'device', 'campaign']
    """
    return None if given is None else [name.strip() for text in given for name in text.split(",")]


def parse_half_life(text: str | None) -> str | float | None:
    """Half-life of an option: a duration, or "none" or "inf" for none.

    >>> parse_half_life("30 days"), parse_half_life("none"), parse_half_life("inf")
    ('30 days', None, None)
    """
    return None if text in ("none", "inf") else parse_duration(text)


def parse_duration(text: str | None) -> str | float | None:
    """Duration of an option: text such as "30 days", or a number in the unit of the time column.

    >>> parse_duration("30 days"), parse_duration("4"), parse_duration("4.5")
    ('30 days', 4, 4.5)
    """
    for number in (int, float):
        with suppress(ValueError):
            return None if text is None else number(text)
    return text
