"""HTTP client of `departing serve`."""

import http.client
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote, urlsplit
from uuid import uuid4

from departing.model.errors import InputError
from departing.model.files import read_document

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


def unreachable(url: str, error: Exception) -> str:
    """Return the message about a service that does not answer."""
    if isinstance(error, ConnectionRefusedError):
        return f"Nothing answers at {url}; start `departing serve` or give another `url`."
    return f"{url} cannot be reached: {error!r}."


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
        segment: str | Mapping[str, str | None] | None = None,
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
        segment
            Segment of the user, such as "de/mobile", or its features by the columns of `serve --segment`; None for
            a missing feature makes the segment unknown. That of the first request counts until the user departs.

        Returns
        -------
        dict
            `event`, `category`, `propensity` and `version`; `segment_known` is False if the policy does not know
            the segment.

        Raises
        ------
        ServiceError
            If the service rejects the request.
        """
        body: dict[str, Any] = {
            "user": user,
            "allowed": None if allowed is None else list(allowed),
            "event": event or uuid4().hex,
            "shown": shown,
            "propensity": propensity,
            "explain": explain,
        }
        if segment is not None:
            body["segment"] = segment if isinstance(segment, str) else dict(segment)
        return dict(self.call("POST", "/v1/recommend", body))

    def feedback(
        self, event: str, clicked: bool, departed: bool | None = None, reward: float | None = None
    ) -> dict[str, Any]:
        """Send the outcome of an event.

        Parameters
        ----------
        event
            ID of the event.
        clicked, departed
            Whether the user clicked, and whether the user departed.
        reward
            Value of the click in the unit of the service, at least 0.

        Returns
        -------
        dict
            `accepted`, and if that is false `code` and `reason`.
        """
        body: dict[str, Any] = {"event": event, "clicked": clicked, "departed": departed}
        if reward is not None:
            body["reward"] = reward
        return dict(self.call("POST", "/v1/feedback", body))

    def feedback_batch(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send up to 1,000 outcomes, dicts of the arguments of `feedback`; return one result for each."""
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

    def categories(self) -> list[dict[str, Any]]:
        """List all categories: dicts with `name`, `retired` and the assumed `reward` of a click, None by default."""
        return list(self.call("GET", "/v1/categories")["categories"])

    def add_category(self, name: str, reward: float | None = None) -> list[dict[str, Any]]:
        """Add a category, or restore a retired one; requires the admin key. Return all categories.

        `reward` is the assumed reward of a click until clicks of the category have rewards; by default that of the
        instance, else the mean of the other categories.
        """
        body = {"name": name} if reward is None else {"name": name, "reward": reward}
        return list(self.call("POST", "/v1/categories", body)["categories"])

    def retire_category(self, name: str) -> list[dict[str, Any]]:
        """Stop showing a category, whose history stays; requires the admin key. Return all categories."""
        return list(self.call("DELETE", f"/v1/categories/{quote(name, safe='')}")["categories"])

    def policy(self) -> dict[str, Any]:
        """Get the policy version of new users."""
        return dict(self.call("GET", "/v1/policy"))

    def publish(self, policy: dict[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
        """Publish a policy as a version that no user gets yet; requires the admin key.

        Parameters
        ----------
        policy
            File that `plan.save` or `decision.save` wrote, or its contents.

        Returns
        -------
        dict
            The `version`, and its details.
        """
        document = policy if isinstance(policy, dict) else read_document(policy, "policy")
        return dict(self.call("POST", "/v1/policies", document))

    def start_experiment(
        self,
        treatment: int | str,
        control: int | str | None = None,
        share: float = 0.1,
        holdout: float = 0.0,
        window: float | None = None,
        return_period: float | None = None,
        planned_users: int = 10_000,
        guardrail: bool = True,
        name: str = "",
        salt: str | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """Start an experiment; requires the admin key.

        Parameters
        ----------
        treatment
            Policy version, or "latest" to follow the trainer.
        control
            Policy version, "latest", or "caller" in shadow mode; by default what new users get at present.
        share, holdout
            Share of the users in the treatment, and share of the users that no ramp reaches.
        window, return_period
            Seconds after a user's first recommendation in which clicks count, and seconds after that window in which
            a user who requests a recommendation is retained; by default the inactivity period.
        planned_users
            Users at which the intervals are narrowest.
        guardrail
            Whether a treatment that is worse is rolled back automatically.
        name, salt
            Name of the experiment, and salt of the assignment of users; random by default.
        force
            Start a version although the guardrail rolled it back before.

        Returns
        -------
        dict
            The experiment: its number `experiment`, `state`, shares and audit trail `changes`.
        """
        body = {"treatment": treatment, "control": control, "share": share, "holdout": holdout, "window": window}
        body |= {"return_period": return_period, "planned_users": planned_users, "guardrail": guardrail}
        return dict(self.call("POST", "/v1/experiments", body | {"name": name, "salt": salt, "force": force}))

    def change_experiment(
        self, experiment: int, action: str, share: float | None = None, reason: str = ""
    ) -> dict[str, Any]:
        """Change a running experiment; `action` is "ramp" (with `share`), "stop", "rollback" or "complete"."""
        body = {"action": action, "share": share, "reason": reason}
        return dict(self.call("POST", f"/v1/experiments/{experiment}", body))

    def experiment(self, experiment: int) -> dict[str, Any]:
        """Get the readout of an experiment: users per arm, and differences with confidence sequences."""
        return dict(self.call("GET", f"/v1/experiments/{experiment}"))

    def experiments(self) -> list[dict[str, Any]]:
        """List all experiments, the latest first."""
        return list(self.call("GET", "/v1/experiments")["experiments"])

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
                    raise ServiceError("unreachable", None, unreachable(self.url, error)) from error
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
