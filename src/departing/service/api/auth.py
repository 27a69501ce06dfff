"""Authentication by API keys, the rate limit per key, and the check of local requests."""

import hashlib
import hmac
import time
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from departing.service.api.problems import ProblemCode, ProblemError

PUBLIC, CLIENT, ADMIN = range(3)  # access levels of routes and keys; each includes those before it
LOOPBACK = ("127.0.0.1", "::1", "localhost")
BURST_SECONDS = 10.0  # a key that was idle may send this many seconds' worth of requests at once


class ApiKeys:
    """API keys, kept as hashes and compared in constant time. Without keys every call is allowed.

    Parameters
    ----------
    client, admin
        Keys for recommendations and feedback, and keys for everything.
    rate
        Requests per second and key; 0 for no limit.
    """

    def __init__(self, client: tuple[str, ...] = (), admin: tuple[str, ...] = (), rate: float = 0.0) -> None:
        self._levels = [(_hash(key), CLIENT) for key in client] + [(_hash(key), ADMIN) for key in admin]
        self.required = bool(client or admin)
        self._unlimited = not self.required and not rate
        self._rate, self._buckets = rate, dict[bytes, list[float]]()

    def check(self, access: int, header: str | None) -> None:
        """Raise unless the `Authorization` header grants access now."""
        if self._unlimited or access == PUBLIC:
            return
        level = self.level(header)
        if level < access:
            if level == CLIENT:
                detail = "An admin key is required; send `Authorization: Bearer ADMIN_KEY`."
                raise ProblemError(ProblemCode.ADMIN_KEY_REQUIRED, detail)
            raise ProblemError(ProblemCode.KEY_REQUIRED, "A key is required; send `Authorization: Bearer KEY`.")
        if not self.within_rate(header):
            detail = f"Rate limit of {self._rate:g} requests per second exceeded; retry after 1 second."
            raise ProblemError(ProblemCode.RATE_LIMITED, detail, ("retry-after", "1"))

    def level(self, header: str | None) -> int:
        """Return the access level that the key in an `Authorization` header grants."""
        if not self.required:
            return ADMIN
        if header is None or not header.startswith("Bearer "):
            return PUBLIC
        given = _hash(header[7:])
        return max(level if hmac.compare_digest(given, kept) else PUBLIC for kept, level in self._levels)

    def within_rate(self, header: str | None) -> bool:
        """Take a token from the bucket of this key; return False if it is empty."""
        if not self._rate:
            return True
        now, capacity = time.monotonic(), max(BURST_SECONDS * self._rate, 1.0)
        bucket = self._buckets.setdefault(_hash(header or "") if self.required else b"", [capacity, now])
        bucket[0] = min(capacity, bucket[0] + (now - bucket[1]) * self._rate)
        bucket[1] = now
        if bucket[0] < 1:
            return False
        bucket[0] -= 1
        return True


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def check_local(headers: Any) -> None:
    """Raise unless the request names this machine as its host and does not come from a page of another site."""
    host, origin = headers.get("host"), headers.get("origin")
    if not _is_loopback(host) or (origin is not None and origin.partition("://")[2] != host):
        detail = (
            "Without API keys only this machine and the service's own pages may connect; set DEPARTING_CLIENT_KEY."
        )
        raise ProblemError(ProblemCode.LOCAL_ONLY, detail)


@lru_cache(maxsize=100)
def _is_loopback(host: str | None) -> bool:
    try:
        return host is None or urlsplit(f"//{host}").hostname in LOOPBACK
    except ValueError:
        return False
