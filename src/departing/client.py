"""A small client: retries that are safe, because asking and telling twice is the same as once."""

import http.client
import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit
from uuid import uuid4

from departing.model.errors import InputError

PAUSES = (0.05, 0.2, 0.8, 3.0)  # seconds before each try but the first
AGAIN = (429, 502, 503, 504)


class Client:
    """Speaks to a running `departing serve`.

    >>> Client("http://127.0.0.1:8080", key="secret")
    <Client of http://127.0.0.1:8080>
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"url is {url!r:.80}; expected something like http://127.0.0.1:8080.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url = url
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def recommend(
        self,
        user: str,
        allowed: Sequence[str] | None = None,
        shown: str | None = None,
        explain: bool = False,
        *,
        propensity: float | None = None,
        event: str | None = None,
    ) -> dict[str, Any]:
        """What to show to a user: `event`, `category`, `propensity` and `version`, and with `explain` more.

        In shadow mode `shown` is what you show, with which `propensity`. An `event` id is made unless you give one.
        """
        ask = {"user": user, "event": event or uuid4().hex, "explain": explain, "propensity": propensity}
        more = {"allowed": None if allowed is None else list(allowed), "shown": shown}
        found: dict[str, Any] = self.call("POST", "/v1/recommend", ask | more)
        return found

    def feedback(self, event: str, clicked: bool, departed: bool | None = None) -> dict[str, Any]:
        """Tell what came of an event; whether it was `accepted`, and if not the `code` and `reason`."""
        found: dict[str, Any] = self.call(
            "POST", "/v1/feedback", {"event": event, "clicked": clicked, "departed": departed}
        )
        return found

    def feedback_batch(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Tell what came of several events, an answer for each."""
        found: list[dict[str, Any]] = self.call("POST", "/v1/feedback", list(rows))
        return found

    def depart(self, user: str) -> bool:
        """Tell that a user has gone for good; whether that is news."""
        return bool(self.call("POST", "/v1/depart", {"user": user})["ok"])

    def user(self, user: str) -> dict[str, Any]:
        """What is known of a user."""
        found: dict[str, Any] = self.call("GET", f"/v1/users/{quote(user, safe='')}")
        return found

    def forget(self, user: str) -> bool:
        """Forget who a user is."""
        return bool(self.call("DELETE", f"/v1/users/{quote(user, safe='')}")["ok"])

    def policy(self) -> dict[str, Any]:
        """The policy that new users get."""
        found: dict[str, Any] = self.call("GET", "/v1/policy")
        return found

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the service, again if it cannot be reached or is busy; a refusal is an `InputError`."""
        content = None if body is None else json.dumps(body).encode()
        for pause in (*PAUSES, None):
            try:
                self._connection.request(method, path, content, self._headers)
                answer = self._connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if pause is None:
                    raise InputError(f"{self.url} cannot be reached: {error!r}.") from error
            else:
                if answer.status == 200:
                    return json.loads(text)
                if answer.status not in AGAIN or pause is None:
                    raise InputError(sentence(answer.status, text))
            time.sleep(pause)
        raise AssertionError

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def sentence(status: int, text: bytes) -> str:
    """What the service says is wrong."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"The service answered with status {status}."
