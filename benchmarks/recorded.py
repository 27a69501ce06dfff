"""Instances on which SARSOP was measured, with the bounds it reached."""

import numpy as np

import departing as dp
from departing.model.examples import blog

# name: number, types, categories, family of `random_instance`; the seed is 1000 times the number plus 0, 1 or 2
FAMILIES = {
    "b": (1, 2, 2, "uniform"),
    "c": (2, 2, 5, "uniform"),
    "d": (3, 3, 3, "uniform"),
    "e": (4, 5, 5, "uniform"),
    "f": (5, 5, 10, "uniform"),
    "g": (6, 10, 20, "uniform"),
    "h": (7, 3, 3, "sticky"),
}

# SARSOP after 20 CPU seconds: lower, upper.
SARSOP = {
    "a0": (0.650291, 0.650291),
    "b0": (3.10462, 3.10462),
    "b1": (11.3886, 11.3886),
    "c1": (11.3860, 11.3860),
    "c2": (25.3113, 25.3113),
    "d2": (10.9734, 10.9734),
    "e0": (8.28004, 8.28213),
    "e1": (4.17963, 4.18229),
    "e2": (5.18711, 5.18882),
    "f0": (10.3224, 10.3332),
    "f1": (13.6823, 13.7829),
    "f2": (5.85501, 5.88668),
    "g0": (8.91143, 10.6675),
    "g1": (9.54789, 11.4700),
    "g2": (12.0066, 14.2224),
    "h1": (81.8700, 81.8702),
    "h2": (110.789, 110.789),
}


def recorded(name):
    """Return the instance of a name such as e1."""
    if name == "a0":
        return blog()
    number, types, categories, family = FAMILIES[name[0]]
    return dp.random_instance(family, types, categories, seed=1000 * number + int(name[1]))


def sure(types, categories, seed):
    """Return an instance with sure departure: click from U(.1, .9), prior from Dirichlet(1)."""
    rng = np.random.default_rng(7000 + types * categories + seed)
    click = rng.uniform(0.1, 0.9, (categories, types))
    return dp.Instance(rng.dirichlet(np.ones(types)), click)


def overlaps(name, plan):
    """True if the bounds of the plan overlap with those of SARSOP, which are rounded to six digits."""
    lower, upper = SARSOP[name]
    return plan.lower <= upper * (1 + 5.1e-6) and plan.upper >= lower * (1 - 5.1e-6)
