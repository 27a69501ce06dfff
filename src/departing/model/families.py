"""Random instances by family."""

import numpy as np
import numpy.typing as npt

from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.validation import check_int, check_seed

MAX_PARAMETERS = 10**7  # entries of one table: 80 MB
FAMILIES = ("uniform", "specialists", "sticky", "row", "column", "diagonal")


def random_instance(
    family: str = "uniform",
    types: int = 2,
    categories: int = 2,
    seed: int = 0,
    depart: npt.ArrayLike | None = None,
) -> Instance:
    """Draw a random instance of a family.

    Parameters
    ----------
    family : str
        - 'uniform': click from U(.1, .9), depart from U(.2, .9), prior from Dirichlet(1);
        - 'specialists': every type has its own favourite with click from U(.7, .93), all other categories from
          U(.1, .55); depart from U(.2, .9), prior from Dirichlet(2);
        - 'sticky': long stays; click from U(.6, .95), depart from U(.05, .3), prior from Dirichlet(1);
        - 'row', 'column', 'diagonal': the paper's structures for two types, two categories and sure departure; click
          from U(.1, .9) given that the structure holds, prior from Dirichlet(1).
    types, categories : int
        Numbers of types and categories.
    seed : int
        Seed of the random generator.
    depart : array_like of float, optional
        Departure probabilities after a no-click, in place of drawn ones.

    Returns
    -------
    Instance

    Raises
    ------
    InputError
        If the family is unknown or does not fit the numbers of types and categories.

    Examples
    --------
    >>> random_instance("column", seed=1).click.round(2)
    array([[0.42, 0.21],
           [0.31, 0.26]])
    """
    types, categories = check_int("types", types), check_int("categories", categories)
    if types * categories > MAX_PARAMETERS:
        raise InputError(
            f"{categories} categories and {types} types are too many; expected a product ≤ {MAX_PARAMETERS}."
        )
    rng = np.random.default_rng(check_seed(seed))
    shape = (categories, types)
    if family == "uniform":
        click, departures, alpha = rng.uniform(0.1, 0.9, shape), rng.uniform(0.2, 0.9, shape), 1.0
    elif family == "specialists":
        if categories < types:
            raise InputError(
                f"categories is {categories}; specialists need at least one for each of {types} types.", "categories"
            )
        click = rng.uniform(0.1, 0.55, shape)
        click[np.arange(types), np.arange(types)] = rng.uniform(0.7, 0.93, types)
        departures, alpha = rng.uniform(0.2, 0.9, shape), 2.0
    elif family == "sticky":
        click, departures, alpha = rng.uniform(0.6, 0.95, shape), rng.uniform(0.05, 0.3, shape), 1.0
    elif family in FAMILIES:
        if shape != (2, 2):
            raise InputError(f"Family {family!r} is for 2 types and 2 categories, not {types} and {categories}.")
        click, departures, alpha = _structured(family, rng), np.ones(shape), 1.0
    else:
        raise InputError(f"family is {family!r}; expected one of {', '.join(FAMILIES)}.", "family")
    prior = rng.dirichlet(np.full(types, alpha))
    return Instance(prior, click, departures if depart is None else depart)


def _structured(family: str, rng: np.random.Generator) -> Floats:
    while True:
        click = rng.uniform(0.1, 0.9, (2, 2))
        a, x = np.unravel_index(click.argmax(), (2, 2))
        click = click[[a, 1 - a]][:, [x, 1 - x]]  # the largest entry first, as in the paper's Remark 1
        if Instance([0.5, 0.5], click).structure == family:
            return click
