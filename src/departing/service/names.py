"""Text that can be stored: names and IDs without NUL and lone surrogates.

SQLite stores both and PostgreSQL neither, so that the service accepts neither.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from departing.model.errors import InputError

T = TypeVar("T")
RULE = "names and IDs cannot contain NUL (U+0000) or lone surrogates"
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # an escape, not a backslash before the text "u0000"
_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)


def check_name(field: str, name: str) -> str:
    """Return a name that can be stored; raise for others."""
    if "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise InputError(f"{field} is {name!r:.60}; {RULE}.")
    return name


def decode_body(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode a JSON body, in which no text may contain NUL or lone surrogates.

    A search in the raw body costs far less than a pattern for every name.
    """
    if b"\\u0000" in body and _NUL.search(body):
        raise msgspec.ValidationError(RULE)
    try:
        return decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if _SURROGATE.search(body):
            raise msgspec.ValidationError(RULE) from error
        raise
