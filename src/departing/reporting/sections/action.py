"""Sections about action: how to test the recommendation, and what to run next."""

import html
import shlex
from math import ceil
from typing import TYPE_CHECKING

from departing.abtest.sample_size import SampleSize
from departing.abtest.sequence import MIN_USERS
from departing.data.spec import MAX_REJECTED, MAX_SEGMENTS, SECONDS
from departing.fitting.identifiability import MIN_IMPRESSIONS
from departing.reporting.page import paragraphs
from departing.reporting.rare_categories import frequent_arguments, rejected_share
from departing.reporting.sections.policy import NO_POLICY
from departing.reporting.verdict import clicks

if TYPE_CHECKING:
    from departing.reporting.report import Report

PYTHON = """import departing as dp
policy = dp.load_policy("policy.json")
policy.recommend(events=[]{segment})   # a new user
policy.recommend(events=[({category!r}, "no-click")]{segment})"""
REWARD_TEST = (
    "Sample sizes of A/B tests are computed for clicks, not for rewards. These commands compute "
    "the users that a test of clicks needs:"
)
DEFAULT_COLUMNS = ("user", "time", "category", "clicked", "departed", "propensity")


def log_arguments(report: "Report", propensity: bool = True) -> str:
    """Arguments of a command that reads the same log in the same way; not every command has `propensity`."""
    spec, parts = report.log.spec, [report.log_name]
    for field in DEFAULT_COLUMNS if propensity else DEFAULT_COLUMNS[:-1]:
        name = spec.columns.get(field)
        if name is not None and name != field:
            parts += [f"--{field}", name]
    if (period := inactivity(report)) is not None:
        parts += ["--inactive-after", period]
    lists = {f"{field}-values": values for field, values in spec.values.items() if values}
    frequent = frequent_arguments(report) if report.verdict.shows_policy else None
    if categories := frequent or spec.categories:
        lists["categories"] = tuple(categories)
    if spec.segments:
        lists["segment"] = spec.segments
    for option, values in lists.items():
        parts += [f"--{option}", ",".join(values)]
    for option in ("reward", "unit", "horizon", "missing_segment"):
        if (value := getattr(spec, option)) is not None:
            parts += [f"--{option.replace('_', '-')}", str(value)]
    if spec.max_segments != MAX_SEGMENTS:
        parts += ["--max-segments", str(spec.max_segments)]
    if spec.time_format is not None:
        parts += ["--time-format", spec.time_format]
    if spec.keep_duplicates:
        parts += ["--duplicates", "keep"]
    accepted = max(spec.max_rejected, rejected_share(report) if frequent else 0.0)
    if accepted != MAX_REJECTED:
        parts += ["--max-rejected", f"{accepted:g}"]
    if report.log.source.table is not None:
        parts += ["--table", report.log.source.table]
    return shlex.join(parts)


def inactivity(report: "Report") -> str | None:
    """Inactivity period of the log as an argument, also where it was suggested; None if departures are logged."""
    profile = report.log.profile
    if profile.inactive is None:
        return None
    period = profile.inactive / profile.time.units
    if not profile.time.is_clock:
        return f"{period:.15g}"
    unit = next(
        unit for unit in ("day", "hour", "minute", "second") if period % SECONDS[unit] == 0 or unit == "second"
    )
    n = period / SECONDS[unit]
    return f"{n:.15g} {unit}{'s' * (n != 1)}"


def commands(*lines: str) -> str:
    """Block of commands to copy."""
    return f"<pre><code>{html.escape(chr(10).join(lines))}</code></pre>"


def test_section(report: "Report") -> str:
    """Sample size of an A/B test against today, and its commands."""
    if not report.verdict.shows_policy:
        return paragraphs(NO_POLICY)
    if report.fit is not None and "reward" in report.fit.instance.extensions:
        return paragraphs(REWARD_TEST) + commands(
            _save_command(report), "departing power fitted.toml policy.json --clicks-only"
        )
    size = report.sample_size
    if size is None:
        return paragraphs(
            "The recommended policy and the policy of the log have practically the same value under the model, so no "
            "A/B test of realistic size would tell them apart."
        )
    sentences = [
        "Show the recommendation to a random half of new users and do for the other half what you do today. "
        + _users_sentence(size, report.unit),
        *_careful_size(report, size),
        f"If you watch the results while the test runs, plan for {size.sequential_users:,} users in total; the last "
        "command then stays valid however often you look.",
    ]
    text = paragraphs(*sentences)
    return text + commands(
        _save_command(report),
        "departing power fitted.toml policy.json",
        "departing ab results.csv   # user, arm and clicks of every user, during and after the test",
    )


def _users_sentence(size: SampleSize, unit: str) -> str:
    """Users of the test, at least as many as its approximation needs."""
    needed = f"{size.users_per_arm:,} users in each half"
    finds = (
        f"the difference that the fitted model expects, {clicks(abs(size.difference))} {unit} per user, with "
        f"probability {size.requested_power:.0%} (significance level {size.significance:.0%})"
    )
    if size.users_per_arm >= MIN_USERS:
        return f"With {needed}, such a test finds {finds}."
    return (
        f"Use at least {2 * MIN_USERS:,} users in total: {needed} would find {finds}, but with fewer than "
        f"{MIN_USERS} users in a half the approximation of the test is rough."
    )


def _careful_size(report: "Report", size: SampleSize) -> list[str]:
    """Users that also find the lower end of the interval of the gain."""
    gain = report.gain_over_log
    if gain is None or not 0 < gain.lower < size.difference:
        return []
    users = ceil(size.users_per_arm * (size.difference / gain.lower) ** 2)
    if users <= MIN_USERS:
        return []
    return [
        f"If the gain is only the lower end of its interval, {clicks(gain.lower)} {report.unit} per user, it takes "
        f"about {users:,} users in each half."
    ]


def _segment(report: "Report") -> str:
    """Argument for users of the largest segment that starts with the category of the example, or ""."""
    starts = () if report.decision is None else report.decision.starts
    return f", segment={starts[0].segments[0]!r}" if starts else ""


def _save_command(report: "Report") -> str:
    return f"{_report_command(report)} --policy policy.json --instance fitted.toml"


def _report_command(report: "Report") -> str:
    return " ".join(["departing report", log_arguments(report), *report.options])


def next_section(report: "Report") -> str:
    """Commands to run next."""
    if not report.verdict.shows_policy:
        again = paragraphs("When the log has changed, run the report again:")
        return again + commands(_report_command(report))
    inactive = inactivity(report)
    serve = "departing serve --instance fitted.toml"
    if inactive is not None and report.log.profile.time.is_clock:
        serve += f" --inactive-after {shlex.quote(inactive)}"
    else:
        serve += " --departures reported"
    same_log = log_arguments(report, propensity=False)
    assign = f"departing assign {same_log} --fit fitted.toml --policy policy.json -o users.csv"
    steps = (
        ("Save the policy and the fitted types.", _save_command(report)),
        ("Assign every user of the log to a type, with the next recommendation.", assign),
        ("Serve recommendations over HTTP; the service logs what it needs for the next report.", serve),
        (
            "Use the policy in Python.",
            PYTHON.format(category=(report.log.categories or ("",))[report.first_category], segment=_segment(report)),
        ),
    )
    items = "".join(f"<li><p>{html.escape(text)}</p>{commands(line)}</li>" for text, line in steps)
    before = paragraphs("This command writes the sample log of this page:") + commands(*report.before_commands)
    left_out = f"The commands leave out the categories with fewer than {MIN_IMPRESSIONS} impressions."
    rare = paragraphs(left_out if frequent_arguments(report) else "")
    return f"{before if report.before_commands else ''}{rare}<ol class='steps'>{items}</ol>"
