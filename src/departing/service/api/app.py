"""The service over HTTP: what is answered, who may ask, and limits."""

import asyncio
import hashlib
import hmac
import json
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import msgspec

from departing.model.errors import InputError
from departing.service.api import messages as m
from departing.service.api.metrics import metrics_text
from departing.service.api.openapi import ADMIN, CLIENT, OPEN, OTHERS, Route, openapi
from departing.service.api.pages import page
from departing.service.dashboard import Watch
from departing.service.export import TYPES, check_form, write_log
from departing.service.rollout import NotFoundError
from departing.service.service import Service
from departing.service.store.base import StoreError
from departing.service.store.connection import UnreachableError
from departing.service.workers.explorer import Explorer
from departing.service.workers.shadow import Shadow

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LARGEST_BODY, SMALL_BODY = 1 << 20, 1 << 16
KEPT = 600.0  # seconds that a log which was asked for is kept
SLOWEST = 10.0  # seconds that a body may take
log = logging.getLogger("departing")
JSON = [("content-type", "application/json")]
TEXT = [("content-type", "text/plain; version=0.0.4; charset=utf-8")]
PAGE = [
    ("content-type", "text/html; charset=utf-8"),
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    ),
]


class Keys:
    """Who may do what: hashes of keys, compared in constant time. Without keys everybody may do everything."""

    def __init__(self, client: tuple[str, ...] = (), admin: tuple[str, ...] = (), rate: float = 0.0) -> None:
        self._hashes = {ADMIN: [_hashed(key) for key in admin], CLIENT: [_hashed(key) for key in client]}
        self.needed = bool(client or admin)
        self.idle = not self.needed and not rate
        self._rate, self._buckets = rate, dict[bytes, list[float]]()

    def allows(self, header: str | None, right: str) -> bool:
        """Whether the bearer of this key has the right; admins have all."""
        if not self.needed or right == OPEN:
            return True
        if header is None or not header.startswith("Bearer "):
            return False
        given = _hashed(header[7:])
        rights = (ADMIN,) if right == ADMIN else (ADMIN, CLIENT)
        matches = [hmac.compare_digest(given, kept) for each in rights for kept in self._hashes[each]]
        return any(matches)

    def in_time(self, header: str | None) -> bool:
        """Whether this key may make another request now: `rate` a second, ten seconds' worth at once."""
        if not self._rate:
            return True
        now, most = time.monotonic(), max(10 * self._rate, 1.0)
        bucket = self._buckets.setdefault(_hashed(header or "") if self.needed else b"", [most, now])
        bucket[0] = min(most, bucket[0] + (now - bucket[1]) * self._rate)
        bucket[1] = now
        if bucket[0] < 1:
            return False
        bucket[0] -= 1
        return True


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class App:
    """An RSGI application, for Granian."""

    def __init__(
        self,
        service: Service,
        keys: Keys | None = None,
        ready: Callable[[], bool] = lambda: True,
        learning: bool = False,
    ) -> None:
        self.service, self.keys, self.ready = service, keys or Keys(), ready
        self._watch, self._shadow = Watch(service, learning), Shadow(service)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._stopping, self._writing = threading.Event(), asyncio.Lock()
        self._totals: dict[str, int] = {}
        self._pages = {"/": page("page.html"), "/explorer": page("explorer.html")}
        self.explorer = Explorer()
        self._encode = msgspec.json.Encoder().encode
        s = service
        self.routes: dict[tuple[str, str], Route] = {
            ("POST", "/v1/recommend"): Route(s.recommend, CLIENT, m.RecommendRequest, m.Recommendation),
            ("POST", "/v1/feedback"): Route(
                self._feedback, CLIENT, m.Feedback | m.FeedbackBatch, m.FeedbackResult | list[m.FeedbackResult]
            ),
            ("POST", "/v1/depart"): Route(lambda leave: s.depart(leave.user), CLIENT, m.DepartRequest, m.Status),
            ("GET", "/v1/users/{user}"): Route(s.known, ADMIN, None, m.UserState),
            ("DELETE", "/v1/users/{user}"): Route(s.forget, ADMIN, None, m.Status),
            ("GET", "/v1/policy"): Route(lambda _: s.policy(), ADMIN, None, m.PolicyVersionInfo),
            ("GET", "/v1/policies"): Route(lambda _: s.policies(), ADMIN, None, m.PolicyList),
            ("POST", "/v1/policy"): Route(
                lambda switch: s.switch(switch.version), ADMIN, m.PolicySwitch, m.PolicyVersionInfo
            ),
            ("GET", "/v1/categories"): Route(lambda _: s.categories(), CLIENT, None, m.CategoryList),
            ("POST", "/v1/categories"): Route(
                lambda c: s.add_category(c.name), ADMIN, m.CategoryRequest, m.CategoryList
            ),
            ("POST", "/v1/categories/retire"): Route(
                lambda c: s.retire_category(c.name), ADMIN, m.CategoryRequest, m.CategoryList
            ),
            ("GET", "/v1/shadow"): Route(lambda _: self._shadow.report(), ADMIN, None, m.ShadowReport),
            ("POST", "/v1/shadow"): Route(self._set_shadow, ADMIN, m.ShadowMode, m.ShadowReport),
            ("GET", "/v1/dashboard"): Route(lambda _: self._watch.look(), ADMIN, None, m.Dashboard),
            ("POST", "/v1/explore"): Route(self.explorer.explore, ADMIN, m.ExploreRequest, m.ExploreResult),
            ("GET", "/health"): Route(lambda _: self._well(True), OPEN, None, m.Status),
            ("GET", "/ready"): Route(lambda _: self._well(self.ready()), OPEN, None, m.Status),
        }
        self._document = json.dumps(openapi(self.routes)).encode()

    async def _feedback(self, told: m.Feedback | list[m.Feedback]) -> m.FeedbackResult | list[m.FeedbackResult]:
        if isinstance(told, m.Feedback):
            return (await self.service.feedback([told]))[0]
        return await self.service.feedback(told)

    def _well(self, ready: bool) -> m.Status:
        failure = self.service.store.failure or (None if ready else "There is no policy yet.")
        return m.Status(True) if failure is None else m.Status(False, failure)

    async def _set_shadow(self, told: m.ShadowMode) -> m.ShadowReport:
        await self.service.set_shadow(told.enabled)
        return await self._shadow.report()

    async def close(self) -> None:
        """Stop what is being worked out aside."""
        self._stopping.set()
        await self._shadow.close()
        await self.explorer.close()

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        status, headers, body = await self.answer(scope, protocol)
        if isinstance(body, Path):
            protocol.response_file(status, headers, str(body))
        else:
            protocol.response_bytes(status, headers, body)

    async def answer(self, scope: Any, protocol: Any) -> tuple[int, list[tuple[str, str]], Any]:
        """The status, headers and body for a request."""
        try:
            return await self._answer(scope, protocol)
        except msgspec.ValidationError as error:
            return self._problem(422, f"The request is not as it should be: {error}.")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._problem(400, f"The body is no JSON: {error}.")
        except NotFoundError as error:
            return self._problem(404, str(error))
        except UnreachableError as error:
            return self._problem(503, str(error))
        except InputError as error:
            return self._problem(422, str(error))
        except TimeoutError:
            return self._problem(408, f"The body did not come within {SLOWEST:g} seconds.")
        except (StoreError, OSError, sqlite3.Error) as error:
            return self._problem(503, str(error))
        except Exception as error:
            if type(error).__module__.startswith("psycopg"):
                return self._problem(503, f"The store cannot be reached: {error}.")
            log.exception("a request failed")
            return self._problem(500, "Something went wrong here; the log of the service says what.")

    async def _answer(self, scope: Any, protocol: Any) -> tuple[int, list[tuple[str, str]], Any]:
        path, method, argument = scope.path, scope.method, None
        route = self.routes.get((method, path))
        if route is None and path.startswith("/v1/users/"):
            route, argument = self.routes.get((method, "/v1/users/{user}")), path[len("/v1/users/") :]
        if not self.keys.needed and not self._is_ours(scope.headers):
            return self._problem(403, "Without a key only this machine is served, and its own pages.")
        key = scope.headers.get("authorization")
        refused = None if route is None else self._refused(route.right, key)
        if refused is not None:
            if 0 < int(scope.headers.get("content-length") or 0) <= SMALL_BODY:  # or else the connection would end
                async with asyncio.timeout(SLOWEST):
                    await _body(scope, protocol)
            return refused
        body = b""
        if method != "GET" and not self.keys.needed:
            body = await _body(scope, protocol)
        elif method != "GET":
            async with asyncio.timeout(SLOWEST):  # strangers may be slow
                body = await _body(scope, protocol)
        if route is None:
            return await self._other(scope, path, method, key)
        if route.decode is not None:
            if len(body) > LARGEST_BODY:
                return self._problem(413, f"The body is larger than {LARGEST_BODY} bytes.")
            argument = route.decode(body)
        found = route.handler(argument)
        if isinstance(found, Awaitable):
            found = await found
        bad = isinstance(found, m.Status) and route.right == OPEN and not found.ok
        return 503 if bad else 200, JSON, self._encode(found)

    def _is_ours(self, headers: Any) -> bool:
        """Whether a request is for this machine by name, and not from the page of somebody else in its browser."""
        host, origin = headers.get("host"), headers.get("origin")
        return _is_local(host) and (origin is None or origin.partition("://")[2] == host)

    async def _other(self, scope: Any, path: str, method: str, key: str | None) -> tuple[int, Any, Any]:
        """What gives no JSON, and what there is not."""
        if method == "GET" and path == "/openapi.json":
            return 200, JSON, self._document
        if method == "GET" and path in self._pages:
            return 200, PAGE, self._pages[path]
        if method == "GET" and path == "/metrics":
            refused = self._refused(CLIENT, key)
            return refused or (200, TEXT, await self._metrics())
        if method == "GET" and path == "/v1/log":
            refused = self._refused(ADMIN, key)
            if refused is not None:
                return refused
            form = check_form(parse_qs(scope.query_string).get("format", ["jsonl"])[0])
            return 200, [("content-type", TYPES[form])], await self._log(form)
        methods = ", ".join(self._methods(path))
        if methods:
            status, headers, words = self._problem(405, f"{path:.100} does not take {method}, but {methods}.")
            return status, [*headers, ("allow", methods)], words
        return self._problem(404, f"There is no {path:.100}; /openapi.json lists all there is.")

    def _methods(self, path: str) -> list[str]:
        """What may be done with a path."""
        if path.startswith("/v1/users/"):
            path = "/v1/users/{user}"
        others = {"/openapi.json", *self._pages, *(place for place, *_ in OTHERS)}
        return [method for method, place in self.routes if place == path] or ["GET"] * (path in others)

    async def _metrics(self) -> bytes:
        service, failing = self.service, self.service.store.failure is not None
        if not failing:
            self._totals = await service.totals()
        return metrics_text(self._totals, service.catalogue.current.number, failing).encode()

    async def _log(self, form: str) -> Path:
        """The log as a file, made in a thread and removed after a while; one at a time."""
        self._folder = self._folder or own_folder()
        target = Path(self._folder.name) / f"{uuid4().hex}.{form}"
        async with self._writing:
            await self.service.settled()
            details = (self.service.store.address, self.service.settings.unanswered, form, target)
            await asyncio.to_thread(write_log, *details, stopped=self._stopping.is_set)
        asyncio.get_running_loop().call_later(KEPT, lambda: target.unlink(missing_ok=True))
        return target

    def _refused(self, right: str, key: str | None) -> tuple[int, list[tuple[str, str]], bytes] | None:
        if self.keys.idle:
            return None
        if not self.keys.allows(key, right):
            if self.keys.allows(key, CLIENT):
                return self._problem(403, "This key does not have the right; an admin's does.")
            return self._problem(401, "A key with this right is needed: Authorization: Bearer KEY.")
        if right != OPEN and not self.keys.in_time(key):
            status, headers, words = self._problem(429, "Too many requests with this key; try again in a second.")
            return status, [*headers, ("retry-after", "1")], words
        return None

    def _problem(self, status: int, sentence: str) -> tuple[int, list[tuple[str, str]], bytes]:
        self.service.counters[f"problems_{status}"] += 1
        return status, JSON, self._encode(m.ProblemDetails(sentence))


@lru_cache(maxsize=100)
def _is_local(host: str | None) -> bool:
    try:
        return host is None or urlsplit(f"//{host}").hostname in LOOPBACK
    except ValueError:
        return False


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the logs of this process; those of processes that were killed are removed."""
    for folder in Path(tempfile.gettempdir()).glob("departing-log-*"):
        number = folder.name.split("-")[2]
        if number.isdecimal() and not _is_running(int(number)):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"departing-log-{os.getpid()}-")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


async def _body(scope: Any, protocol: Any) -> bytes:
    """What was sent; of what is far too large only the beginning."""
    if int(scope.headers.get("content-length") or LARGEST_BODY) < LARGEST_BODY:
        return bytes(await protocol())
    body = bytearray()
    async for part in protocol:
        body += part
        if len(body) > 8 * LARGEST_BODY:
            break
    return bytes(body)
