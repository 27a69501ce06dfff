"""Random instances, by family."""

import numpy as np
import numpy.typing as npt

from departing.model.errors import InputError
from departing.model.instance import Floats, Instance
from departing.model.validation import check_int, check_seed

LARGEST = 10**7
FAMILIES = ("uniform", "specialists", "sticky", "row", "column", "diagonal")


def random_instance(
    family: str = "uniform",
    types: int = 2,
    categories: int = 2,
    seed: int = 0,
    depart: npt.ArrayLike | None = None,
) -> Instance:
    """A random instance of a family; `depart` overrides the drawn chances of departing.

    - `uniform`: click from U(.1, .9), depart from U(.2, .9), prior from Dirichlet(1);
    - `specialists`: every type has its own favourite, clicked with a chance from U(.7, .93), all other
      categories from U(.1, .55); depart from U(.2, .9), prior from Dirichlet(2);
    - `sticky`: long stays; click from U(.6, .95), depart from U(.05, .3), prior from Dirichlet(1);
    - `row`, `column`, `diagonal`: the paper's structures for two types, two categories and sure departure;
      click from U(.1, .9) on the condition that the structure holds, prior from Dirichlet(1).

    >>> random_instance("column", seed=1).click.round(2)
    array([[0.42, 0.21],
           [0.31, 0.26]])
    """
    types, categories = check_int("types", types), check_int("categories", categories)
    if types * categories > LARGEST:
        raise InputError(
            f"{categories} categories and {types} types are too many; at most {LARGEST} pairs are drawn."
        )
    rng = np.random.default_rng(check_seed(seed))
    shape = (categories, types)
    if family == "uniform":
        click, leave, alpha = rng.uniform(0.1, 0.9, shape), rng.uniform(0.2, 0.9, shape), 1.0
    elif family == "specialists":
        if categories < types:
            raise InputError(
                f"categories is {categories}; specialists need at least one for each of {types} types.", "categories"
            )
        click = rng.uniform(0.1, 0.55, shape)
        click[np.arange(types), np.arange(types)] = rng.uniform(0.7, 0.93, types)
        leave, alpha = rng.uniform(0.2, 0.9, shape), 2.0
    elif family == "sticky":
        click, leave, alpha = rng.uniform(0.6, 0.95, shape), rng.uniform(0.05, 0.3, shape), 1.0
    elif family in FAMILIES:
        if shape != (2, 2):
            raise InputError(f"Family {family!r} is for 2 types and 2 categories, not {types} and {categories}.")
        click, leave, alpha = _structured(family, rng), np.ones(shape), 1.0
    else:
        raise InputError(f"family is {family!r}; allowed are {', '.join(FAMILIES)}.", "family")
    prior = rng.dirichlet(np.full(types, alpha))
    return Instance(prior, click, leave if depart is None else depart)


def _structured(family: str, rng: np.random.Generator) -> Floats:
    while True:
        click = rng.uniform(0.1, 0.9, (2, 2))
        a, x = np.unravel_index(click.argmax(), (2, 2))
        click = click[[a, 1 - a]][:, [x, 1 - x]]  # the largest entry first, as in the paper's Remark 1
        if Instance([0.5, 0.5], click).structure == family:
            return click
