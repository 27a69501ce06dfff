"""Commands `publish` and `experiment`, which talk to a running service."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from departing.cli import options as opt
from departing.cli.inputs import parse_share
from departing.cli.output import present
from departing.client import Client, ServiceError
from departing.model.errors import InputError
from departing.model.files import DOCUMENT_SUFFIXES, read_document

Url = Annotated[str, Option(help="URL of the service.")]
Key = Annotated[
    str | None, Option(envvar="DEPARTING_ADMIN_KEY", help="Admin key of the service.", show_default=False)
]
Number = Annotated[int | None, Argument(metavar="EXPERIMENT", help="Number; the latest one by default.")]
Reason = Annotated[str, Option(help="Reason for the audit trail.")]
LOCAL = "http://127.0.0.1:8080"
MAX_LISTED = 5  # versions in an error message


def publish(
    policy: Annotated[str, Argument(metavar="POLICY", help=opt.POLICY_HELP)],
    url: Url = LOCAL,
    key: Key = None,
    as_json: opt.Json = False,
) -> None:
    """Publish a policy to a running service, as a version that no user gets yet."""
    from departing.policy.files import policy_to_dict
    from departing.policy.library import parse_policy

    with connected(url, key) as client:
        if Path(policy).suffix.lower() in DOCUMENT_SUFFIXES:
            document = read_document(policy, "policy")
        else:
            names = [each["name"] for each in client.call("GET", "/v1/categories")["categories"]]
            document = policy_to_dict(parse_policy(policy, names)) | {"names": names}
        version = client.publish(document)
    present(as_json, version, [f"Published as version {version['version']}: {version['description']}."])


def start(
    treatment: Annotated[
        str | None, Argument(metavar="VERSION", help="Policy version, or latest to follow the trainer.")
    ] = None,
    control: Annotated[
        str | None,
        Option(metavar="VERSION", help="Version, latest, or caller in shadow mode.", show_default="current"),
    ] = None,
    share: Annotated[str, Option(metavar="SHARE", help="Share of the users who get the version.")] = "0.1",
    holdout: Annotated[str, Option(metavar="SHARE", help="Share of the users that no ramp reaches.")] = "0",
    window: Annotated[
        str | None,
        Option(metavar="DURATION", help="Clicks count within it.", show_default="inactivity period, at most 1 day"),
    ] = None,
    return_period: Annotated[
        str | None,
        Option(
            metavar="DURATION",
            help="Users who return within it after the window are retained.",
            show_default="inactivity period, or the window",
        ),
    ] = None,
    planned_users: Annotated[int, Option(metavar="N", help="Users at which intervals are narrowest.")] = 10_000,
    guardrail: Annotated[bool, Option(help="Roll back automatically if the version is worse.")] = True,
    name: Annotated[str, Option(help="Name of the experiment.")] = "",
    salt: Annotated[str | None, Option(help="Salt of the assignment of users.", show_default="random")] = None,
    force: Annotated[bool, Option("--force", help="Start a version that the guardrail rolled back.")] = False,
    url: Url = LOCAL,
    key: Key = None,
    as_json: opt.Json = False,
) -> None:
    """Start an experiment with a policy version."""
    from departing.data.spec import parse_duration
    from departing.service.departures import duration

    against = None if control is None else _version("--control", control, ("latest", "caller"))
    shares = parse_share("share", share), parse_share("holdout", holdout)
    periods = (("window", window), ("return_period", return_period))
    seconds = {field: parse_duration(field, period) for field, period in periods if period is not None}
    with connected(url, key) as client:
        if treatment is None:
            raise InputError(f"VERSION is missing; expected latest or a published version: {_versions(client)}.")
        started = client.start_experiment(
            _version("VERSION", treatment, ("latest",)),
            against,
            *shares,
            planned_users=planned_users,
            guardrail=guardrail,
            name=name,
            salt=salt,
            force=force,
            **seconds,
        )
    window_text, readout_text = duration(started["window"]), duration(started["window"] + started["return_period"])
    outcomes = f"Clicks count within {window_text} of a user's first recommendation"
    first = f"the first readout of clicks comes after about {window_text}, that of retention after {readout_text}"
    arms = f"version {started['treatment']} for {_percent(started['share'])} of new users"
    lines = [f"Experiment {started['experiment']} is running: {arms}.", f"{outcomes}; {first}."]
    if started["note"]:
        lines = [lines[0], started["note"]]
    present(as_json, started, lines)


def ramp(
    share: Annotated[str, Argument(metavar="SHARE", help="New share of the treatment, such as 0.5 or 50%.")],
    number: Number = None,
    reason: Reason = "",
    url: Url = LOCAL,
    key: Key = None,
    as_json: opt.Json = False,
) -> None:
    """Change the share of new users who get the version."""
    _change("ramp", number, url, key, as_json, parse_share("SHARE", share), reason)


def stop(
    number: Number = None, reason: Reason = "", url: Url = LOCAL, key: Key = None, as_json: opt.Json = False
) -> None:
    """Stop an experiment: new users get the control's policy, active users keep theirs."""
    _change("stop", number, url, key, as_json, None, reason)


def rollback(
    number: Number = None, reason: Reason = "", url: Url = LOCAL, key: Key = None, as_json: opt.Json = False
) -> None:
    """Roll an experiment back: all users get the control's policy, active ones from the next request on.

    A stopped experiment can be rolled back too.
    """
    _change("rollback", number, url, key, as_json, None, reason)


def complete(
    number: Number = None, reason: Reason = "", url: Url = LOCAL, key: Key = None, as_json: opt.Json = False
) -> None:
    """Complete an experiment: all new users get the version."""
    _change("complete", number, url, key, as_json, None, reason)


def status(number: Number = None, url: Url = LOCAL, key: Key = None, as_json: opt.Json = False) -> None:
    """Print the readout of an experiment."""
    from departing.cli.tables.experiment import readout_contents

    with connected(url, key) as client:
        readout = client.experiment(_latest(client, number))
    present(as_json, readout, readout_contents(readout))


EXPERIMENT_COMMANDS = (start, ramp, stop, rollback, complete, status)


def _change(
    action: str, number: int | None, url: str, key: str | None, as_json: bool, share: float | None, reason: str = ""
) -> None:
    with connected(url, key) as client:
        changed = client.change_experiment(_latest(client, number), action, share, reason)
    notes = [changed["note"]] if changed["note"] else []
    present(as_json, changed, [f"Experiment {changed['experiment']} is {_state(changed)}.", *notes])


def _state(experiment: dict[str, Any]) -> str:
    """Describe the state of an experiment, and who gets which policy from now on."""
    treatment, control = (_policy(experiment[name]) for name in ("treatment", "control"))
    return {
        "running": f"running: {_percent(experiment['share'])} of new users get {treatment}",
        "stopped": f"stopped: new users get {control}; active users of the treatment keep {treatment}",
        "rolled_back": f"rolled back: all users get {control}, active ones from the next request on",
        "completed": f"completed: all new users get {treatment}",
    }[experiment["state"]]


def _policy(policy: int | str) -> str:
    names = {"latest": "the latest version", "caller": "the caller's choice"}
    return names[policy] if isinstance(policy, str) else f"version {policy}"


@contextmanager
def connected(url: str, key: str | None) -> Iterator[Client]:
    """Connect to a service; the messages about keys name the option."""
    with Client(url, key) as client:
        try:
            yield client
        except ServiceError as error:
            if error.code not in ("key_required", "admin_key_required"):
                raise
            problem = "requires an admin key" if key is None else "does not accept this key as its admin key"
            detail = f"{url} {problem}; pass --key or set DEPARTING_ADMIN_KEY."
            raise ServiceError(error.code, error.status, detail) from error


def _versions(client: Client) -> str:
    versions = client.call("GET", "/v1/policies")["versions"]
    texts = [f"{each['version']} ({each['source']}: {each['description']})" for each in versions[:MAX_LISTED]]
    return "; ".join(texts) + ("; …" if len(versions) > MAX_LISTED else "")


def _latest(client: Client, number: int | None) -> int:
    if number is not None:
        return number
    experiments = client.experiments()
    if not experiments:
        raise InputError("There is no experiment; start one with: departing experiment start VERSION.")
    return int(experiments[0]["experiment"])


def _version(option: str, text: str, words: tuple[str, ...]) -> int | str:
    if text in words:
        return text
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{option} is {text!r:.40}; expected the number of a version or {' or '.join(words)}.")
    return int(text)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
