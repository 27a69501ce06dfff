"""One-line descriptions of the types of an instance."""

import numpy as np

from departing.fitting.likelihood import Parameters
from departing.model.counts import Booleans
from departing.model.instance import Instance

# Wording only: no result depends on these thresholds.
LOVED = 0.5  # click probability from which a type "loves" its favourite category instead of liking it best
NEAR_FAVOURITE = 0.9  # share of the favourite's click probability from which a category is named beside it
SELDOM = 0.05  # departure probability per step below which a type "seldom leaves"
MAX_STDERR = 0.15  # of a probability that is mentioned: it then differs from an unknown one
NOTABLE = 1.1  # ratio of departure probabilities from which the worst category is named


def describe_types(instance: Instance, stderr: Parameters | None = None) -> list[str]:
    """Describe every type in one line; with `stderr`, only by probabilities that are known well enough."""
    return [describe_type(instance, x, stderr) for x in range(instance.n_types)]


def describe_type(instance: Instance, x: int, stderr: Parameters | None = None) -> str:
    """Describe type x in one line: its share, favourite categories, and the category it is likeliest to leave at.

    >>> site = Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], 0.3, categories=["sports", "economics"])
    >>> describe_type(site, 0)
    '70% of users: love sports, leave after economics'
    """
    click, leave, names = instance.click[:, x], instance.departure_probabilities[:, x], instance.categories
    click_known, leave_known = _known(instance, x, stderr)
    share = f"{instance.prior[x]:.0%} of users: "
    if not click_known.any():
        return f"{share}too little data about their clicks"
    order = [a for a in np.argsort(-click, kind="stable") if click_known[a]]
    best = click[order[0]]
    sentence = f"{share}{'love' if best >= LOVED else 'like best'} "
    sentence += _enumerate([names[a] for a in order if click[a] >= NEAR_FAVOURITE * best])
    leave = np.where(leave_known, leave, np.nan)
    if not leave_known.any():
        return sentence
    if leave_known.all() and leave.max() < SELDOM:
        return sentence + ", seldom leave"
    if leave_known.sum() > 1 and np.nanmax(leave) > NOTABLE * np.nanmin(leave):
        sentence += f", leave after {names[int(np.nanargmax(leave))]}"
    return sentence


def _known(instance: Instance, x: int, stderr: Parameters | None) -> tuple[Booleans, Booleans]:
    """Categories `[K]` with a known click probability, and with a known departure probability."""
    if stderr is None:
        every = np.ones(instance.n_categories, bool)
        return every, every
    click, depart, depart_on_click = (
        getattr(instance, name)[:, x] for name in ("click", "depart", "depart_on_click")
    )
    errors = stderr.click[:, x], stderr.depart[:, x], stderr.depart_on_click[:, x]
    slopes = depart_on_click - depart, 1 - click, click  # of the departure probability, by each of the three
    leave = np.sqrt(sum((slope * error) ** 2 for slope, error in zip(slopes, errors, strict=True)))
    return errors[0] <= MAX_STDERR, leave <= np.minimum(MAX_STDERR, instance.departure_probabilities[:, x])


def _enumerate(names: list[str]) -> str:
    """Names joined by commas and "and", the third and later ones counted if there are more than three."""
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
