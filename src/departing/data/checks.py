"""Checks of a log: input that is not understood raises an error, or is noted, instead of being fitted silently."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from shlex import quote
from typing import NamedTuple

from departing.data.quality import OTHER_CATEGORY, Irregularity
from departing.data.spec import MAX_REJECTED, LogSpec, sort_categories
from departing.formatting import first_few
from departing.model.errors import InputError
from departing.model.histories import Histories
from departing.model.names import list_names, suggest

MAX_LABELS = 12  # labels of a flag in a message
TIME_BINS = 64  # of equal length, from the first to the last time of a log
STRAY_SHARE = 0.01  # largest share of events whose times are far before or far after all others
RARE = 0.02  # a category with fewer events than this share of a similar one may be a misspelling of it
FEW_EVENTS = 30  # with fewer, the standard error of a rate is about 0.1 even if all users are of one type
MAX_KEPT = 20  # categories to keep in a message
NEXT_STEPS = {
    "time cannot be parsed": "state the format of the times by `time_format`='%d/%m/%Y %H:%M'",
    OTHER_CATEGORY: "list all categories by `categories`",
    "clicked cannot be parsed": "name the values that mean a click by `clicked_values`",
    "duplicate row": "if equal rows are separate events, use `duplicates`='keep'",
    "event after the user's departure": "make departed true at the last event of a user only",
}

Label = tuple[str, int, bool | None]


def check_horizon(horizon: int | None, histories: Histories) -> None:
    """Raise if a user has more recommendations than the horizon allows."""
    if horizon is not None and (longest := int(histories.steps.max(initial=0))) > horizon:
        raise InputError(
            f"horizon is {horizon}, but users of the log have up to {longest:,} recommendations; expected at least "
            f"{longest:,}; or omit `horizon`. To plan for fewer steps, fit without it and set horizon = {horizon} in "
            f"the instance; to evaluate policies of {horizon} recommendations, use departing ope --horizon {horizon} "
            "(off_policy_value in Python).",
            "horizon",
        )


def check_rejected(
    name: str,
    events: int,
    irregularities: Sequence[Irregularity],
    max_rejected: float,
    noun: str = "events",
    open_rows: int = 0,
) -> None:
    """Raise if a larger share of rows is rejected than accepted, with counts, reasons, examples and the next step.

    Of the rejected rows `open_rows` do not count: their outcome is not known yet.
    """
    rejected = sorted((each for each in irregularities if each.rejected), key=lambda each: -each.count)
    n = sum(each.count for each in rejected)
    if n - open_rows <= max_rejected * events:
        return
    lines = [
        f"{n:,} of {events:,} {noun} in {name} ({n / events:.1%}) are rejected; the accepted share is "
        f"{max_rejected:.3g} (`max_rejected`)."
    ]
    for each in rejected:
        lines.append(f"  {each.count:,} × {each.kind}")
        lines += [f"      {example}" for example in each.examples]
    step = NEXT_STEPS.get(rejected[0].kind, "correct the rows")
    share = min(1.0, -(-n * 100 // events) / 100)
    lines.append(f"Next step: {step}; or accept the loss of these rows by `max_rejected`={share:.3g}.")
    raise InputError("\n".join(lines))


def check_categories(source: str, spec: LogSpec, found: Sequence[tuple[str, int]], events: int) -> None:
    """Raise if the caller lists categories that are not among those `found` in the source, each with its events."""
    names = [name for name, _ in found]
    absent = [name for name in spec.categories or () if name not in names]
    if not absent or spec.max_rejected > MAX_REJECTED:
        return
    listed = first_few([f"{name!r} ({n:,} events)" for name, n in found], 10)
    lost = sum(n for name, n in found if name not in (spec.categories or ()))
    others = [name for name in names if name not in (spec.categories or ())]
    hints = "".join(
        f" For {name!r}: {hint}" for name in absent[:3] if "did you mean" in (hint := suggest(name, others))
    )
    noun = "categories" if len(absent) > 1 else "category"
    raise InputError(
        f"`categories` lists the {noun} {list_names(absent)}, which no event in {source} has; its categories are "
        f"{listed}, and {lost:,} of {events:,} events have a category that is not listed.{hints} "
        "Correct `categories`, or accept this by `max_rejected`=1."
    )


def check_labels(field: str, column: str, labels: Sequence[Label], unknown: int, events: int, spec: LogSpec) -> None:
    """Raise if a flag has only one or two labels of which one is unknown, or too many rows with `unknown` labels.

    A label is a text in lower case with its number of rows and its flag, which is None if the label is unknown.
    """
    few = len(labels) <= 2 and spec.max_rejected <= MAX_REJECTED
    if not unknown or not (few or unknown > spec.max_rejected * events):
        return
    undefined = [label for label, _, flag in labels if flag is None]
    known = [label for label, _, flag in labels if flag]
    # Nothing says which of several unknown labels is the positive one: both are offered, in alphabetical order.
    examples = " or ".join(f"`{field}_values`={label!r}" for label in known[:1] or sorted(undefined)[:2])
    are_unknown = "is not a known word" if len(undefined) == 1 else "are not known words"
    meaning = {"clicked": "a click", "departed": "a departure"}[field]
    raise InputError(
        f"Column {column!r} for {field} holds {_listed(labels)}, and {list_names(undefined)} {are_unknown}; name "
        f"the values that mean {meaning}, such as {examples}: all other values are then the opposite."
    )


def check_values(field: str, column: str, labels: Sequence[Label], absent: Sequence[str]) -> None:
    """Raise if values that the caller names are `absent`."""
    if absent:
        raise InputError(
            f"{field}_values lists {list_names(absent)}, which does not occur in column {column!r}; its values are "
            f"{_listed(labels)}.",
            f"{field}_values",
        )


def check_numbers(field: str, column: str, number: str) -> None:
    """Raise the error for a number in a flag that is neither 0 nor 1."""
    raise InputError(
        f"Column {column!r} for {field} holds {number}; expected 0 or 1, true or false, or yes or no: name the "
        f"values that are true by `{field}_values`={number!r}, or derive such a column first, for instance "
        f"{column} >= {number}."
    )


def _listed(labels: Sequence[Label]) -> str:
    return first_few([f"{label!r} ({n:,} rows)" for label, n, _ in labels], MAX_LABELS)


class Gap(NamedTuple):
    """A part of a log's time without events: the times at its ends, and the numbers of events before and after."""

    start: int
    end: int
    before: int
    after: int

    @property
    def length(self) -> int:
        """Time between the events at the ends."""
        return self.end - self.start


def regular_times(
    bins: Callable[[int, int], Mapping[int, tuple[int, int, int]]], first: int, last: int, least_gap: int
) -> tuple[int, int]:
    """First and last time of a log without the few times that are far before or far after all others.

    Few are at most `STRAY_SHARE` of all events. They are far if the gap that separates them is at least `least_gap`
    and longer than the rest of the log: more than half of its time, or longer than what remains between a gap at the
    start and a gap at the end. What is left is searched again, because a very long gap hides shorter ones.

    Parameters
    ----------
    bins : callable
        Given the first and the last time, maps the number of a bin to the number of its events, their first and their
        last time; empty bins are left out.
    first, last : int
        Extreme times of all events.
    least_gap : int
        Shortest gap that counts.
    """
    most = before = after = 0.0
    while True:
        found = bins(first, last)
        total = sum(n for n, _, _ in found.values())
        most = most or STRAY_SHARE * total
        gaps, seen = [], 0
        for left, right in pairwise(sorted(found)):
            seen += found[left][0]
            gaps.append(Gap(found[left][2], found[right][1], seen, total - seen))
        none = Gap(0, 0, 0, 0)
        early = max((gap for gap in gaps if before + gap.before <= most), key=lambda gap: gap.length, default=none)
        late = max((gap for gap in gaps if after + gap.after <= most), key=lambda gap: gap.length, default=none)
        rest = late.start - early.end if early != none and late != none else last - first
        longer = min((last - first) / 2, rest if rest < min(early.length, late.length) else math.inf)
        is_early, is_late = (gap.length > longer and gap.length >= least_gap for gap in (early, late))
        if is_early:
            before, first = before + early.before, early.end
        if is_late:
            after, last = after + late.after, late.start
        if not is_early and not is_late:
            return first, last


def similar_names(counts: Mapping[str, int]) -> list[str]:
    """Sentences about categories that are spelled almost alike.

    >>> similar_names({"sport": 3000, "sprot": 3, "News": 50, "news ": 60})
    ["Categories 'News' (50 events) and 'news ' (60 events) differ in case or spaces only and are separate \
categories; to merge them, write them alike in the log.", \
"Category 'sprot' (3 events) may be a misspelling of 'sport' (3,000 events)."]
    """
    folded: dict[str, list[str]] = {}
    for name in sorted(counts):
        folded.setdefault("".join(name.split()).casefold(), []).append(name)
    sentences = []
    for same in folded.values():
        if len(same) > 1:
            listed = " and ".join(f"{name!r} ({counts[name]:,} events)" for name in same[:5])
            sentences.append(
                f"Categories {listed} differ in case or spaces only and are separate categories; to merge them, "
                "write them alike in the log."
            )
    for one, two in combinations(sorted(folded, key=lambda key: max(counts[name] for name in folded[key])), 2):
        rare, common = folded[one][0], max(folded[two], key=lambda name: counts[name])
        if sum(counts[name] for name in folded[one]) < RARE * counts[common] and _one_edit(one, two):
            sentences.append(
                f"Category {rare!r} ({counts[rare]:,} events) may be a misspelling of {common!r} "
                f"({counts[common]:,} events)."
            )
    return sentences


def rare_names(counts: Mapping[str, int]) -> list[str]:
    """A sentence about categories with too few events to estimate anything, and how to leave them out.

    >>> rare_names({"news": 9000, "sport": 3000, "sprot": 3})
    ["Category 'sprot' (3 events) is rare: its probabilities cannot be estimated. To leave it out, list the \
categories to keep: categories=['news', 'sport'] (--categories news,sport)."]
    """
    limit = min(FEW_EVENTS, RARE * max(counts.values(), default=0))
    rare = sorted((name for name, n in counts.items() if n < limit), key=lambda name: (counts[name], name))
    if not rare:
        return []
    listed = first_few([f"{name!r} ({counts[name]:,} events)" for name in rare], 5)
    one = len(rare) == 1
    kept = [name for name in sort_categories(counts) if name not in rare]
    option = ""
    if len(kept) <= MAX_KEPT:
        option = f": categories={kept!r}"
        if not any("," in name for name in kept):
            option += f" (--categories {quote(','.join(kept))})"
    return [
        f"{'Category' if one else 'Categories'} {listed} {'is' if one else 'are'} rare: {'its' if one else 'their'} "
        f"probabilities cannot be estimated. To leave {'it' if one else 'them'} out, list the categories to keep"
        f"{option}."
    ]


def _one_edit(one: str, two: str) -> bool:
    """True if two words differ by one letter or by two exchanged neighbours; numbers may differ.

    >>> _one_edit("sprot", "sport"), _one_edit("news", "new"), _one_edit("page1", "page2"), _one_edit("art", "act")
    (True, True, False, False)
    """
    if abs(len(one) - len(two)) > 1 or max(len(one), len(two)) < 4:
        return False
    start = 0
    while start < min(len(one), len(two)) and one[start] == two[start]:
        start += 1
    one, two = one[start:], two[start:]
    while one and two and one[-1] == two[-1]:
        one, two = one[:-1], two[:-1]
    if any(character.isdigit() for character in one + two):
        return False
    return max(len(one), len(two)) <= 1 or (len(one) == 2 and one == two[::-1])
