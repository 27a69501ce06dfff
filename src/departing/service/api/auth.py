"""Authentication by API keys, the rate limit per key, and the check of local requests."""

import hashlib
import hmac
import time
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from departing.service.api.problems import ProblemCode, ProblemError

PUBLIC, CLIENT, ADMIN = "public", "client", "admin"  # access levels of routes
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
        self._hashes = {ADMIN: [_hash(key) for key in admin], CLIENT: [_hash(key) for key in client]}
        self.required = bool(client or admin)
        self._unlimited = not self.required and not rate
        self._rate, self._buckets = rate, dict[bytes, list[float]]()

    def check(self, access: str, header: str | None) -> None:
        """Raise unless the `Authorization` header grants access now."""
        if self._unlimited:
            return
        if not self.grants(header, access):
            if self.grants(header, CLIENT):
                raise ProblemError(
                    ProblemCode.ADMIN_KEY_REQUIRED,
                    "This call needs an admin key: Authorization: Bearer KEY.",
                )
            raise ProblemError(ProblemCode.KEY_REQUIRED, "This call needs a key: Authorization: Bearer KEY.")
        if access != PUBLIC and not self.within_rate(header):
            detail = "Too many requests with this key; retry in a second."
            raise ProblemError(ProblemCode.RATE_LIMITED, detail, ("retry-after", "1"))

    def grants(self, header: str | None, access: str) -> bool:
        """True if the key in the header has the access level; admin keys have all."""
        if not self.required or access == PUBLIC:
            return True
        if header is None or not header.startswith("Bearer "):
            return False
        given = _hash(header[7:])
        levels = (ADMIN,) if access == ADMIN else (ADMIN, CLIENT)
        matches = [hmac.compare_digest(given, kept) for level in levels for kept in self._hashes[level]]
        return any(matches)

    def within_rate(self, header: str | None) -> bool:
        """Take a token from the bucket of this key; False if it is empty."""
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
    """Raise unless a request names this machine as its host and comes from no other site's page."""
    host, origin = headers.get("host"), headers.get("origin")
    if not _is_loopback(host) or (origin is not None and origin.partition("://")[2] != host):
        detail = "Without keys the service accepts requests from this machine and its own pages only."
        raise ProblemError(ProblemCode.LOCAL_ONLY, detail)


@lru_cache(maxsize=100)
def _is_loopback(host: str | None) -> bool:
    try:
        return host is None or urlsplit(f"//{host}").hostname in LOOPBACK
    except ValueError:
        return False
