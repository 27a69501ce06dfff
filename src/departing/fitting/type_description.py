"""One-line descriptions of the types of an instance."""

import numpy as np

from departing.model.instance import Instance

# Wording only: no result depends on these thresholds.
LOVED = 0.5  # click probability from which a type "loves" its favourite category instead of liking it best
NEAR_FAVOURITE = 0.9  # share of the favourite's click probability from which a category is named beside it
SELDOM = 0.05  # departure probability per step below which a type "seldom leaves"
NOTABLE = 1.1  # ratio of departure probabilities from which the worst category is named


def describe_types(instance: Instance) -> list[str]:
    """Describe every type in one line."""
    return [describe_type(instance, x) for x in range(instance.n_types)]


def describe_type(instance: Instance, x: int) -> str:
    """Describe type x in one line: its share, favourite categories, and the category it is likeliest to leave at.

    >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], 0.3, categories=["sports", "economics"])
    >>> describe_type(site, 0)
    '70% of users: love sports, leave after economics'
    """
    click, leave, names = instance.click[:, x], instance.departure_probabilities[:, x], instance.categories
    order = np.argsort(-click, kind="stable")
    best = click[order[0]]
    verb = "love" if best >= LOVED else "like best"
    sentence = f"{instance.prior[x]:.0%} of users: {verb} "
    sentence += _enumerate([names[a] for a in order if click[a] >= NEAR_FAVOURITE * best])
    if leave.max() < SELDOM:
        return sentence + ", seldom leave"
    if instance.n_categories > 1 and leave.max() > NOTABLE * leave.min():
        sentence += f", leave after {names[int(leave.argmax())]}"
    return sentence


def _enumerate(names: list[str]) -> str:
    """Names joined by commas and "and", the third and later ones counted if there are more than three."""
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
