"""Sections about action: how to test the recommendation, and what to run next."""

import html
import re
import shlex
from math import ceil
from typing import TYPE_CHECKING

from departing.abtest.sample_size import SampleSize
from departing.data.spec import AUTO
from departing.reporting.page import paragraphs
from departing.reporting.sections.policy import NO_POLICY
from departing.reporting.verdict import clicks

if TYPE_CHECKING:
    from departing.reporting.report import Report

PYTHON = """import departing as dp
policy = dp.load_policy("policy.json")
policy.recommend(events=[])   # a new user
policy.recommend(events=[({category!r}, "no-click")])"""
DEFAULT_COLUMNS = ("user", "time", "category", "clicked", "departed", "propensity")


def log_arguments(report: "Report") -> str:
    """Arguments of a command that reads the same log in the same way."""
    spec, parts = report.log.spec, [report.log_name]
    for field in DEFAULT_COLUMNS:
        name = spec.columns.get(field)
        if name is not None and name != field:
            parts += [f"--{field}", name]
    if spec.inactive_after not in (None, AUTO):
        parts += ["--inactive-after", str(spec.inactive_after)]
    if spec.categories is not None:
        parts += ["--categories", ",".join(spec.categories)]
    if report.log.source.table is not None:
        parts += ["--table", report.log.source.table]
    return shlex.join(parts)


def commands(*lines: str) -> str:
    """Block of commands to copy."""
    return f"<pre><code>{html.escape(chr(10).join(lines))}</code></pre>"


def test_section(report: "Report") -> str:
    """Sample size of an A/B test against today, and its commands."""
    if not report.verdict.shows_policy:
        return paragraphs(NO_POLICY)
    size = report.sample_size
    if size is None:
        return paragraphs(
            "The recommended policy and the policy of the log have practically the same value under the model, so no "
            "A/B test of realistic size would tell them apart."
        )
    sentences = [
        f"Show the recommendation to a random half of new users and do for the other half what you do today. With "
        f"{size.users_per_arm:,} users in each half, such a test finds the expected difference with probability "
        f"{size.requested_power:.0%} (significance level {size.significance:.0%}).",
        *_careful_size(report, size),
        f"If you watch the results while the test runs, plan for {-(-size.sequential_users // 2):,} users in each "
        "half: `departing ab` then stays valid however often you look.",
    ]
    text = "".join(f"<p>{_code(html.escape(sentence))}</p>" for sentence in sentences)
    return text + commands(
        _save_command(report),
        "departing power fitted.toml policy.json",
        "departing ab results.csv   # user, arm and clicks of every user, during and after the test",
    )


def _careful_size(report: "Report", size: SampleSize) -> list[str]:
    """Users that also find the lower end of the interval of the gain."""
    gain = report.gain_over_log
    if gain is None or not 0 < gain.lower < size.difference:
        return []
    users = ceil(size.users_per_arm * (size.difference / gain.lower) ** 2)
    return [
        f"If the gain is only the lower end of its interval, {clicks(gain.lower)} clicks per user, it takes about "
        f"{users:,} users in each half."
    ]


def _code(text: str) -> str:
    """HTML of escaped text with commands in backticks."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text)


def _save_command(report: "Report") -> str:
    return f"departing report {log_arguments(report)} --policy policy.json --instance fitted.toml"


def next_section(report: "Report") -> str:
    """Commands to run next."""
    log = log_arguments(report)
    if not report.verdict.shows_policy:
        return paragraphs("When the log has changed, run the report again:") + commands(f"departing report {log}")
    inactive = report.log.spec.inactive_after
    serve = "departing serve --instance fitted.toml"
    if isinstance(inactive, str) and inactive != AUTO:
        serve += f" --inactive-after {shlex.quote(inactive)}"
    assign = f"departing assign {log} --fit fitted.toml --policy policy.json -o users.csv"
    steps = (
        ("Save the policy and the fitted types.", _save_command(report)),
        ("Assign every user of the log to a type, with the next recommendation.", assign),
        ("Serve recommendations over HTTP; the service logs what it needs for the next report.", serve),
        (
            "Use the policy in Python.",
            PYTHON.format(category=(report.log.categories or ("",))[report.first_category]),
        ),
    )
    items = "".join(f"<li><p>{html.escape(text)}</p>{commands(line)}</li>" for text, line in steps)
    before = paragraphs("This command writes the sample log of this page:") + commands(*report.before_commands)
    return f"{before if report.before_commands else ''}<ol class='steps'>{items}</ol>"
