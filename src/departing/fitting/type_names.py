"""Readable, unique names of the types of an instance, such as "news lovers"."""

from collections import Counter

import numpy as np

from departing.fitting.type_description import LOVED, NEAR_FAVOURITE
from departing.formatting import shorten_name
from departing.model.counts import Booleans
from departing.model.instance import Instance

# Wording only: no result depends on these thresholds.
CASUAL = 0.1  # click probability of the favourite category below which a type has none worth naming
NOTABLE_DEPARTURE = 1.25  # ratio of mean departure probabilities from which two types are named by them


def name_types(instance: Instance, known: Booleans | None = None) -> tuple[str, ...]:
    """Name every type after its favourite category; all names differ.

    `known` marks the click probabilities `[K, M]` that are determined well enough to be named [default: all].

    A type that likes several categories best is named after two of them, and one that likes most categories equally
    after how often it clicks. Types with the same favourites differ by how soon they leave, or by a number.

    >>> site = Instance([0.5, 0.3, 0.2], [[0.9, 0.2, 0.3], [0.3, 0.8, 0.3]], 0.3, categories=["sport", "art"])
    >>> name_types(site)
    ('sport lovers', 'art lovers', 'casual users')
    """
    known = np.ones(instance.click.shape, bool) if known is None else known
    names = [_name(instance, x, known[:, x]) for x in range(instance.n_types)]
    for name in [name for name, n in Counter(names).items() if n == 2]:
        x, y = (i for i, each in enumerate(names) if each == name)
        both = known[:, x] & known[:, y]
        departures = instance.depart[both if both.any() else slice(None)].mean(axis=0)
        if departures[x] > departures[y]:
            x, y = y, x
        if departures[y] > NOTABLE_DEPARTURE * departures[x]:
            names[x], names[y] = f"patient {name}", f"impatient {name}"
    totals, seen = Counter(names), Counter[str]()
    for x, name in enumerate(names):
        seen[name] += 1
        if totals[name] > 1:
            names[x] = f"{name} {seen[name]}"
    return tuple(names)


def _name(instance: Instance, x: int, known: Booleans) -> str:
    if instance.n_types == 1:
        return "all users"
    if not known.any():
        return "other users"
    click = np.where(known, instance.click[:, x], -1.0)
    order = np.argsort(-click, kind="stable")
    best = float(click[order[0]])
    favourites = [instance.categories[a] for a in order if click[a] >= NEAR_FAVOURITE * best]
    if best < CASUAL or (len(favourites) > 1 and len(favourites) > known.sum() / 2):
        return "frequent clickers" if best >= LOVED else "casual users"
    subjects = dict[str, str]()  # "books" and "Books" are one
    for name in map(shorten_name, favourites):
        subjects.setdefault(name.casefold(), name)
    subject = " and ".join([*subjects.values()][:2])
    return f"{subject} lovers" if best >= LOVED else f"occasional {subject} users"
