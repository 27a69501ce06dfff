"""HTTP client of `departing serve`."""

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import quote, urlsplit
from uuid import uuid4

from departing.model.errors import InputError

RETRY_PAUSES = (0.05, 0.2, 0.8, 3.0)  # seconds before each retry; 4 s in total bridge a restart of the service
RETRY_STATUSES = (429, 502, 503, 504)
FINAL_CODES = ("user_limit",)  # problems that last, whatever their status


class ServiceError(InputError):
    """A request that the service rejected, or that could not be delivered.

    Attributes
    ----------
    code : str
        The `code` of the problem details; `unreachable` without a connection, `unexpected_response` if the server is
        not `departing serve`.
    status : int or None
        HTTP status.
    detail : str
        The cause in one sentence.
    """

    def __init__(self, code: str, status: int | None, detail: str) -> None:
        super().__init__(detail)
        self.code, self.status, self.detail = code, status, detail

    @classmethod
    def of_response(cls, status: int, body: bytes) -> Self:
        """Return the error of a response with problem details.

        >>> ServiceError.of_response(404, b'{"code": "not_found", "detail": "Unknown user."}').code
        'not_found'
        """
        try:
            problem = json.loads(body)
            return cls(problem["code"], status, problem["detail"])
        except (ValueError, KeyError, TypeError):
            return cls("unexpected_response", status, f"Unexpected response with status {status}.")


def parse_url(url: str) -> tuple[str, int, bool]:
    """Return the host, the port, and True for TLS.

    >>> parse_url("http://127.0.0.1:8080"), parse_url("https://recommend.example")
    (('127.0.0.1', 8080, False), ('recommend.example', 443, True))
    """
    try:
        parts = urlsplit(url)
        host, port, tls = parts.hostname, parts.port, parts.scheme == "https"
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise InputError(f"url is {url!r:.80}; expected a URL such as http://127.0.0.1:8080.", "url")
    return host, port or (443 if tls else 80), tls


class Client:
    """A connection to a running `departing serve`.

    Requests are retried while the service is unreachable or busy. That is safe, because every call is idempotent.

    Parameters
    ----------
    url
        Address of the service, such as `http://127.0.0.1:8080`.
    key
        API key, if the service has keys.
    timeout
        Seconds to wait for a response.

    Examples
    --------
    >>> Client("http://127.0.0.1:8080", key="secret")
    <Client of http://127.0.0.1:8080>
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 10.0) -> None:
        host, port, tls = parse_url(url)
        self.url = url
        kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=timeout)
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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
        """Request a recommendation.

        Parameters
        ----------
        user
            User ID.
        allowed
            Names of the categories to choose from; all by default.
        shown, propensity
            In shadow mode: the category that you show, and its probability.
        explain
            Include `belief` and `expected_remaining_clicks`.
        event
            ID of the event, unique over all users; a random one by default.

        Returns
        -------
        dict
            `event`, `category`, `propensity` and `version`.

        Raises
        ------
        ServiceError
            If the service rejects the request.
        """
        body = {
            "user": user,
            "allowed": None if allowed is None else list(allowed),
            "event": event or uuid4().hex,
            "shown": shown,
            "propensity": propensity,
            "explain": explain,
        }
        return dict(self.call("POST", "/v1/recommend", body))

    def feedback(self, event: str, clicked: bool, departed: bool | None = None) -> dict[str, Any]:
        """Send the outcome of an event.

        Returns
        -------
        dict
            `accepted`, and if that is false `code` and `reason`.
        """
        body = {"event": event, "clicked": clicked, "departed": departed}
        return dict(self.call("POST", "/v1/feedback", body))

    def feedback_batch(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send up to 1,000 outcomes, dicts with `event`, `clicked` and optionally `departed`; one result for each."""
        return list(self.call("POST", "/v1/feedback", list(rows)))

    def depart(self, user: str) -> bool:
        """Record the departure of a user; False if the user had departed before."""
        return bool(self.call("POST", "/v1/depart", {"user": user})["ok"])

    def user(self, user: str) -> dict[str, Any]:
        """Get the state of a user: counts, belief and history."""
        return dict(self.call("GET", f"/v1/users/{quote(user, safe='')}"))

    def forget(self, user: str) -> bool:
        """Anonymise a user."""
        return bool(self.call("DELETE", f"/v1/users/{quote(user, safe='')}")["ok"])

    def policy(self) -> dict[str, Any]:
        """Get the policy version of new users."""
        return dict(self.call("GET", "/v1/policy"))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, with retries, and return the decoded JSON of the response.

        Raises
        ------
        ServiceError
            If the service rejects the request or stays unreachable.
        """
        content = None if body is None else json.dumps(body).encode()
        for pause in (*RETRY_PAUSES, None):
            try:
                self._connection.request(method, path, content, self._headers)
                response = self._connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if pause is None:
                    raise ServiceError("unreachable", None, f"{self.url} cannot be reached: {error!r}.") from error
            else:
                if response.status == 200:
                    return json.loads(text)
                problem = ServiceError.of_response(response.status, text)
                if response.status not in RETRY_STATUSES or problem.code in FINAL_CODES or pause is None:
                    raise problem
            time.sleep(pause)
        raise AssertionError

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
