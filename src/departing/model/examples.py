"""The example of the paper, and two more."""

from departing.model.instance import Instance


def blog() -> Instance:
    """The paper's blog (Table 1): two categories, two types of readers, who leave at the first no-click.

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
    """A magazine with three kinds of readers, each with a favourite, who forgive every other no-click.

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
    """An instance of two by two on which one fixed category loses much: 15 of 100 clicks.

    >>> hard().structure
    'column'
    """
    return Instance(prior=[0.0842, 0.9158], click=[[0.7846, 0.0541], [0.5867, 0.1994]], depart=1.0)


EXAMPLES = {"blog": blog, "hard": hard, "magazine": magazine}
