"""Documents in TOML or JSON files, by suffix, and atomic writes."""

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from departing.model.errors import InputError

FORMAT_VERSION = 1


DOCUMENT_SUFFIXES = (".toml", ".json")
_NUMBERS = re.compile(r"\[\n([-+.,\d\seE]*)\]")  # a list of numbers over several lines


def check_suffix(path: str | os.PathLike[str], allowed: tuple[str, ...]) -> str:
    """Return the suffix of `path`, which must be one of `allowed`.

    >>> check_suffix("shop.TOML", (".toml", ".json"))
    '.toml'
    """
    suffix = Path(path).suffix.lower()
    if not suffix:
        raise InputError(f"{str(path)!r} has no suffix; expected one of {', '.join(allowed)}.")
    if suffix not in allowed:
        raise InputError(f"{str(path)!r} ends in {suffix!r}; expected one of {', '.join(allowed)}.")
    return suffix


def check_writable(path: str | os.PathLike[str], allowed: tuple[str, ...]) -> None:
    """Raise unless a file with one of the `allowed` suffixes can be written there; call it before long work."""
    check_suffix(path, allowed)
    _beside(Path(path)).unlink()


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it at the end, or is deleted on any exception.

    The file gets the permissions `mode`, by default those of a new file.
    """
    target = Path(path)
    part = _beside(target)
    try:
        yield part
        os.chmod(part, 0o666 & ~_umask() if mode is None else mode)
        os.replace(part, target)
    except OSError as error:
        if error.filename not in (None, str(part)):
            raise  # another file's error
        raise InputError(f"Cannot write {str(target)!r}: {_reason(error)}.") from error
    finally:
        part.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    """Create an empty file beside `target`."""
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if not target.parent.exists():
            raise FileNotFoundError(None, f"there is no folder {str(target.parent)!r}")
        handle, name = tempfile.mkstemp(prefix=f".{target.stem[:40]}-", suffix=target.suffix, dir=target.parent)
        os.close(handle)
    except (OSError, ValueError) as error:  # ValueError for a name that contains NUL
        raise InputError(f"Cannot write {str(target)!r}: {_reason(error)}.") from error
    return Path(name)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_document(path: str | os.PathLike[str], kind: str, document: dict[str, Any]) -> None:
    """Write `document` after its `format` and `version`."""
    text = format_document(kind, document, check_suffix(path, DOCUMENT_SUFFIXES))
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def format_document(kind: str, document: dict[str, Any], suffix: str = ".toml") -> str:
    """Return the text of a file with this suffix that contains `document`.

    >>> print(format_document("instance", {"prior": [0.4, 0.6]}))
    format = "departing-instance"
    version = 1
    prior = [0.4, 0.6]
    """
    headed = {"format": f"departing-{kind}", "version": FORMAT_VERSION, **document}
    text = tomli_w.dumps(headed) if suffix == ".toml" else json.dumps(headed, indent=1) + "\n"
    return _NUMBERS.sub(lambda row: "[" + ", ".join(row[1].replace(",", " ").split()) + "]", text)


def read_document(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read a document of `kind`; `format` and `version` are optional, for files written by hand."""
    return strip_header(read_any(path), kind, repr(str(path)))


def read_any(path: str | os.PathLike[str]) -> Any:
    """Read a document of any kind, with its header."""
    suffix = check_suffix(path, DOCUMENT_SUFFIXES)
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        return tomllib.loads(text) if suffix == ".toml" else json.loads(text)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {name!r}.") from error
    except OSError as error:
        raise InputError(f"Cannot read {name!r}: {error.strerror or error}.") from error
    except RecursionError as error:
        raise InputError(f"{name!r} is not valid {suffix[1:].upper()}: it is nested too deeply.") from error
    except ValueError as error:  # both decoders' errors, and bytes that are not UTF-8
        raise InputError(f"{name!r} is not valid {suffix[1:].upper()}: {error}.") from error


def strip_header(document: Any, kind: str, where: str) -> dict[str, Any]:
    """Return the fields of a document of `kind` without `format` and `version`, which are checked if present."""
    if not isinstance(document, dict):
        raise InputError(f"{where} does not contain named fields; expected the fields of {_a(kind)}.")
    fields, expected = dict(document), f"departing-{kind}"
    if (actual := fields.pop("format", expected)) != expected:
        raise InputError(f"{where} has format {actual!r:.80}; expected {expected!r}.{_step(actual, kind, where)}")
    version = fields.pop("version", FORMAT_VERSION)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f"{where} has version {version!r:.80}; expected an integer ≥ 1.")
    if version > FORMAT_VERSION:
        raise InputError(
            f"{where} has version {version!r:.80}; this release reads up to {FORMAT_VERSION}. Upgrade departing."
        )
    return fields


def _step(actual: Any, kind: str, where: str) -> str:
    """Return the next step after a file of the other kind was given."""
    if (actual, kind) == ("departing-instance", "policy"):
        file = where.strip("'\"") if where[0] in "'\"" else "INSTANCE"
        return f" Make one with `departing plan {file} -o policy.json`."
    if (actual, kind) == ("departing-policy", "instance"):
        return " Give the instance that was planned, or make one with `departing fit LOG -o fitted.toml`."
    return ""


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def check_fields(document: dict[str, Any], required: set[str], optional: set[str], where: str) -> None:
    """Raise unless `document` has all `required` fields and no others except `optional` ones."""
    for field in sorted(required - document.keys()):
        raise InputError(f"{where} lacks the field {field!r}.")
    for field in sorted(document.keys() - required - optional):
        allowed = ", ".join(sorted(required | optional))
        raise InputError(f"{where} has the unknown field {field!r:.80}; expected one of {allowed}.")
