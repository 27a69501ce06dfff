"""Categories with too few impressions to be recommended, such as misspelt ones."""

import shlex
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from departing.data.log import Log
from departing.fitting.identifiability import MIN_IMPRESSIONS
from departing.formatting import first_few, format_count, shorten_name
from departing.model.instance import Floats

if TYPE_CHECKING:
    from departing.reporting.report import Report

MAX_NAMES = 5  # in the sentence about rare categories
MAX_LISTED = 30  # categories in a command


def impressions(log: Log) -> Floats:
    """Impressions of each category `[K]`, also those whose outcome is still open."""
    return np.asarray(log.totals.sum(axis=1), float)


def rare_categories(log: Log) -> tuple[int, ...]:
    """Categories with few impressions; none if fewer than two categories have enough."""
    rare = impressions(log) < MIN_IMPRESSIONS
    return tuple(np.flatnonzero(rare).tolist()) if (~rare).sum() >= 2 else ()


def rare_sentence(report: "Report") -> str:
    """Sentence that names the rare categories and how to leave them out, or "" if there are none."""
    rare = report.rare_categories
    if not rare:
        return ""
    names, shown = report.log.categories or (), impressions(report.log)
    listed = first_few([f"“{_quoted(names[a])}” ({shown[a]:,.0f})" for a in rare], MAX_NAMES)
    count = format_count(len(rare), "category has", "categories have")
    leave_out = "correct these names in the log, or leave them out"
    if (arguments := frequent_arguments(report)) is not None:
        leave_out += f" with --categories {shlex.quote(','.join(arguments))}"
    return (
        f"{count} fewer than {MIN_IMPRESSIONS} impressions, too few to recommend: {listed}. If they are mistakes, "
        f"{leave_out}."
    )


def _quoted(name: str) -> str:
    """Name on one line, with the spaces at its ends, which may be the mistake."""
    return " " * (name != name.lstrip()) + shorten_name(name) + " " * (name != name.rstrip())


def frequent_arguments(report: "Report") -> list[str] | None:
    """Names of the categories that are not rare, or None if there are no rare ones or the option cannot list them."""
    rare = set(report.rare_categories)
    names = [name for a, name in enumerate(report.log.categories or ()) if a not in rare]
    if not rare or len(names) > MAX_LISTED or any("," in name or name != name.strip() for name in names):
        return None
    return names


def rejected_share(report: "Report") -> float:
    """Share of the rows that is rejected without the rare categories, rounded up to a percent."""
    facts = report.log.report
    lost = facts.rejected + float(impressions(report.log)[list(report.rare_categories)].sum())
    return ceil(100 * lost / max(facts.events, 1)) / 100
