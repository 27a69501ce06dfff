"""IDs of requests: the caller's, or one that is unique among all processes."""

import os
import re
from collections.abc import Callable
from itertools import count

HEADER = "x-request-id"
_is_valid = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}").fullmatch  # printable, safe in logs, as long as proxies' IDs


def request_ids() -> Callable[[str | None], str]:
    """Return a function from the caller's header to the ID of a request.

    A missing or invalid ID is replaced: the caller would otherwise decide what the log contains.
    """
    prefix, numbers = os.urandom(6).hex(), count(1)

    def request_id(given: str | None) -> str:
        return given if given is not None and _is_valid(given) else f"{prefix}-{next(numbers):x}"

    return request_id
