"""Example instances: the blog of the paper, and three more."""

from departing.model.instance import Instance
from departing.model.segments import Segments


def blog() -> Instance:
    """Return the blog of the paper (Table 1): two categories, two types, sure departure.

    >>> blog().types
    ('x', 'y')
    """
    return Instance(
        prior=[0.4, 0.6],
        click=[[0.5, 0.28], [0.4, 0.39]],
        depart=1.0,
        categories=["economics", "sports"],
        types=["x", "y"],
    )


def magazine() -> Instance:
    """Return a magazine: three types of readers, each with a favourite category, who depart at half of the no-clicks.

    >>> magazine().categories
    ('news', 'sport', 'music')
    """
    return Instance(
        prior=[0.4, 0.35, 0.25],
        click=[[0.85, 0.35, 0.25], [0.3, 0.8, 0.35], [0.25, 0.3, 0.9]],
        depart=0.5,
        categories=["news", "sport", "music"],
        types=["newsreader", "fan", "listener"],
    )


def hard() -> Instance:
    """Return a 2 × 2 instance on which the best fixed policy loses 15 % of the clicks.

    >>> hard().structure
    'column'
    """
    return Instance(prior=[0.0842, 0.9158], click=[[0.7846, 0.0541], [0.5867, 0.1994]], depart=1.0)


def shop() -> Instance:
    """Return a shop with rewards in euro and segments by country and device.

    >>> shop().segments.names
    ('de/mobile', 'de/desktop', 'fr/mobile', 'fr/desktop')
    """
    return Instance(
        prior=None,
        click=[[0.8, 0.45, 0.3], [0.35, 0.75, 0.25], [0.08, 0.15, 0.55]],
        depart=[[0.3, 0.4, 0.5], [0.5, 0.3, 0.5], [0.6, 0.6, 0.3]],
        categories=["offers", "fashion", "electronics"],
        types=["bargain hunter", "browser", "buyer"],
        reward=[1.5, 3.0, 8.0],
        unit="euro",
        segments=Segments(
            ["de/mobile", "de/desktop", "fr/mobile", "fr/desktop"],
            share=[0.4, 0.25, 0.2, 0.15],
            prior=[[0.65, 0.25, 0.1], [0.2, 0.2, 0.6], [0.3, 0.65, 0.05], [0.15, 0.5, 0.35]],
            columns=["country", "device"],
        ),
    )


EXAMPLES = {"blog": blog, "hard": hard, "magazine": magazine, "shop": shop}
# Names of columns in the sample log of an example, as arguments of `sample_log`.
LOG_COLUMNS = {"shop": {"time_column": "ts", "reward_column": "revenue"}}
