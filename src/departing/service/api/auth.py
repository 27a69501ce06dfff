"""Authentication by API keys, rate limits, and the check of local requests."""

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from departing.service.api.connections import network
from departing.service.api.problems import ProblemCode, ProblemError
from departing.service.event_log import log_event

PUBLIC, CLIENT, ADMIN = range(3)  # access levels of routes and keys; each includes those before it
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MIN_KEY = 20  # characters below which a key may be guessed; 20 random letters have 94 bits
BURST_SECONDS = 10.0  # a key that was idle may send this many seconds' worth of requests at once
WRONG_KEY_RATE, WRONG_KEY_BURST = 1.0, 10.0  # wrong keys per second and address, and at once: enough for a mistake
MAX_BUCKETS = 10_000  # addresses whose wrong keys are counted, about 2 MB; the least recent ones are dropped
LOG_SECONDS = 60.0  # between two events about wrong keys, so that they do not fill the log
CHALLENGE = ("www-authenticate", 'Bearer realm="departing"')
WRONG = ("www-authenticate", 'Bearer realm="departing", error="invalid_token"')
OWN_SITE = (None, "same-origin", "none")  # values of `Sec-Fetch-Site`; None from other clients than browsers


class RateLimit:
    """Token buckets, one for each name: `rate` requests per second, and up to `burst` at once after a pause."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # tokens and time of the last one

    def take(self, name: Hashable) -> bool:
        """Take a token; return False if there is none."""
        now = time.monotonic()
        tokens, since = self._buckets.pop(name, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        allowed = tokens >= 1
        self._buckets[name] = tokens - allowed, now
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return allowed

    def __len__(self) -> int:
        return len(self._buckets)


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
        self._rate, self._limit = rate, RateLimit(rate, max(BURST_SECONDS * rate, 1.0))
        self.wrong = RateLimit(WRONG_KEY_RATE, WRONG_KEY_BURST)
        self._logged = -LOG_SECONDS

    def check(self, access: int, scope: Any) -> None:
        """Raise unless the `Authorization` header of a request grants access now."""
        if self._unlimited or access == PUBLIC:
            return
        header = scope.headers.get("authorization")
        level, key = self._known(header)
        if level < access:
            self._reject(level, header, scope.client)
        if self._rate and not self._limit.take(key):
            detail = f"Rate limit of {self._rate:g} requests per second exceeded; retry after 1 second."
            raise ProblemError(ProblemCode.RATE_LIMITED, detail, ("retry-after", "1"))

    def _reject(self, level: int, header: str | None, client: str) -> None:
        """Raise the problem of a key that is missing, wrong or not sufficient.

        A valid key is never refused because of wrong ones, which may come from the same proxy. The limit therefore
        bounds the work and the log lines that wrong keys cause; only the length of a key protects it from guessing.
        """
        if level == CLIENT:
            detail = "An admin key is required; send `Authorization: Bearer ADMIN_KEY`."
            raise ProblemError(ProblemCode.ADMIN_KEY_REQUIRED, detail)
        detail = "A key is required; send `Authorization: Bearer KEY`."
        if header is None:
            raise ProblemError(ProblemCode.KEY_REQUIRED, detail, CHALLENGE)
        address = network(client.rpartition(":")[0].strip("[]"))
        if self.wrong.take(address):
            raise ProblemError(ProblemCode.KEY_REQUIRED, f"The key is not valid. {detail}", WRONG)
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            log_event("wrong_keys", address=address)
        detail = f"Too many wrong keys from this address; at most {WRONG_KEY_RATE:g} per second are answered."
        raise ProblemError(ProblemCode.RATE_LIMITED, detail, ("retry-after", "1"))

    def level(self, header: str | None) -> int:
        """Return the access level that the key in an `Authorization` header grants."""
        return self._known(header)[0]

    def _known(self, header: str | None) -> tuple[int, bytes]:
        """Return the access level that a header grants, and the hash of its key: empty if no key is valid."""
        if not self.required:
            return ADMIN, b""
        scheme, _, key = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            return PUBLIC, b""
        given = _hash(key.strip(" "))
        granted = [(level, kept) for kept, level in self._levels if hmac.compare_digest(given, kept)]
        return max(granted, default=(PUBLIC, b""))


def weak_keys(client: str | None, admin: str | None) -> list[str]:
    """Return warnings about keys that are equal or short.

    >>> weak_keys("x" * 20, "secret")
    ['DEPARTING_ADMIN_KEY has 6 characters; use at least 20 random ones.']
    """
    keys = {"DEPARTING_CLIENT_KEY": client, "DEPARTING_ADMIN_KEY": admin}
    short = {name: len(key) for name, key in keys.items() if key and len(key) < MIN_KEY}
    texts = [f"{name} has {n} characters; use at least {MIN_KEY} random ones." for name, n in short.items()]
    if client and client == admin:
        texts.append("DEPARTING_CLIENT_KEY and DEPARTING_ADMIN_KEY are equal, so every caller is an administrator.")
    return texts


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def check_local(headers: Any, is_page: bool) -> None:
    """Raise unless the request names this machine as its host and does not come from a page of another site.

    Links on other sites to a page of the service work; everything else that another site makes a browser request is
    refused: it would be done with the rights of the browser's user.
    """
    hosts, origin, site = headers.get_all("host"), headers.get("origin"), headers.get("sec-fetch-site")
    if (
        len(hosts) == 1
        and _is_loopback(hosts[0])
        and (origin is None or origin.partition("://")[2] == hosts[0])
        and (site in OWN_SITE or (is_page and headers.get("sec-fetch-dest") == "document"))
    ):
        return
    detail = "Without API keys only this machine and the service's own pages may connect; set DEPARTING_CLIENT_KEY."
    raise ProblemError(ProblemCode.LOCAL_ONLY, detail)


@lru_cache(maxsize=100)
def _is_loopback(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in LOOPBACK
    except ValueError:
        return False
