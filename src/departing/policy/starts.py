"""Starts: the segments whose recommended policies show the same category first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from departing.formatting import first_few, format_share, shorten_name
from departing.model.segments import SEPARATOR
from departing.policy.protocol import Policy, policy_in_segment, recommended, resolve_policy

MAX_STARTS, MAX_LABELS = 3, 3  # of a sentence


@dataclass(frozen=True)
class Start:
    """Segments whose recommended policies start with a category.

    Attributes
    ----------
    category : str
        Name of the category.
    segments : tuple of str
        Names of the segments, that with the most users first.
    labels : tuple of str
        The same, shortened: "fr/*" stands for all segments with this value.
    share : float
        Share of the users in these segments.
    """

    category: str
    segments: tuple[str, ...]
    labels: tuple[str, ...]
    share: float


def group_starts(first: Mapping[str, str], shares: Sequence[float]) -> tuple[Start, ...]:
    """Group segments by the category that each shows first; the group with the most users comes first.

    >>> first = {"de/mobile": "offers", "fr/mobile": "art", "fr/desktop": "art"}
    >>> [(each.category, each.labels) for each in group_starts(first, [0.5, 0.2, 0.3])]
    [('offers', ('de/mobile',)), ('art', ('fr/*',))]
    """
    share = dict(zip(first, shares, strict=True))
    names, starts = sorted(first, key=lambda name: -share[name]), []
    for category in dict.fromkeys(first.values()):
        own = [name for name in names if first[name] == category]
        starts.append(Start(category, tuple(own), _labels(own, names), sum(share[name] for name in own)))
    return tuple(sorted(starts, key=lambda start: -start.share))


def _labels(own: list[str], names: list[str]) -> tuple[str, ...]:
    """Short names of some segments: those that are all the segments with a value of a column are named by it."""
    parts = {name: name.split(SEPARATOR) for name in names}
    n = len(parts[names[0]])
    if n < 2 or any(len(each) != n for each in parts.values()):
        return tuple(own)
    labels, left = [], list(own)
    for column in range(n):
        for value in dict.fromkeys(parts[name][column] for name in own):
            having = [name for name in names if parts[name][column] == value]
            if len(having) > 1 and set(having) <= set(left):
                labels.append(SEPARATOR.join(value if i == column else "*" for i in range(n)))
                left = [name for name in left if name not in having]
    return (*labels, *left)


def describe_starts(starts: Sequence[Start], with_shares: bool = True) -> str:
    """Describe first categories in one phrase, the largest segments first.

    >>> describe_starts(group_starts({"de": "offers", "fr": "art"}, [0.6, 0.4]))
    'offers in de (60% of users), art in fr (40%)'
    """
    if len(starts) == 1:
        return shorten_name(starts[0].category)
    phrases = []
    for i, start in enumerate(starts[:MAX_STARTS]):
        labels = first_few([shorten_name(label) for label in start.labels], MAX_LABELS)
        share = f" ({format_share(start.share)}{'' if i else ' of users'})" if with_shares else ""
        phrases.append(f"{shorten_name(start.category)} in {labels}{share}")
    rest = sum(len(start.segments) for start in starts[MAX_STARTS:])
    if rest:
        phrases.append(f"other categories in {rest} {'other segment' if rest == 1 else 'other segments'}")
    return ", ".join(phrases)


def describe_policies(policies: Iterable[str], starts: Sequence[Start], with_shares: bool = True) -> str:
    """Describe the policies of segments in one phrase, given that of each.

    >>> describe_policies(["always art", "always art"], ())
    'always art'
    """
    phrases = set(policies)
    if len(phrases) == 1:
        return phrases.pop()
    first = describe_starts(starts, with_shares)
    if all(phrase.startswith("always ") for phrase in phrases):
        return f"always {first}"
    return f"start with {first}, then adapt to the user's clicks"


def describe_by_segment(
    policy: Policy, categories: Sequence[str], segments: Sequence[str], shares: Sequence[float] | None = None
) -> str:
    """Describe a policy that depends on segments in one phrase, with the shares of their users if they are given."""
    start, phrases, first = np.zeros((1, len(categories), 4), np.int64), [], {}
    for name in segments:
        own = resolve_policy(policy_in_segment(policy, name), categories)
        describe = getattr(own, "describe", None)
        phrases.append(type(own).__name__ if describe is None else str(describe(categories)))
        first[name] = categories[int(recommended(own, start)[0])]
    starts = group_starts(first, [1 / len(segments)] * len(segments) if shares is None else shares)
    return describe_policies(phrases, starts, shares is not None)
