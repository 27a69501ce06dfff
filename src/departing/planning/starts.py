"""Starts: the segments whose recommended policies show the same category first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from departing.formatting import first_few, format_share, shorten_name
from departing.model.segments import SEPARATOR

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


def describe_starts(starts: Sequence[Start]) -> str:
    """Describe first categories in one phrase, the largest segments first.

    >>> describe_starts(group_starts({"de": "offers", "fr": "art"}, [0.6, 0.4]))
    'offers in de (60% of users), art in fr (40%)'
    """
    if len(starts) == 1:
        return shorten_name(starts[0].category)
    phrases = []
    for i, start in enumerate(starts[:MAX_STARTS]):
        labels = first_few([shorten_name(label) for label in start.labels], MAX_LABELS)
        share = f"{format_share(start.share)}{'' if i else ' of users'}"
        phrases.append(f"{shorten_name(start.category)} in {labels} ({share})")
    rest = sum(len(start.segments) for start in starts[MAX_STARTS:])
    if rest:
        phrases.append(f"other categories in {rest} {'other segment' if rest == 1 else 'other segments'}")
    return ", ".join(phrases)


def describe_policies(policies: Iterable[str], starts: Sequence[Start]) -> str:
    """Describe the policies of segments in one phrase, given that of each.

    >>> describe_policies(["always art", "always art"], ())
    'always art'
    """
    phrases = set(policies)
    if len(phrases) == 1:
        return phrases.pop()
    return f"start with {describe_starts(starts)}, then adapt to the user's clicks"
