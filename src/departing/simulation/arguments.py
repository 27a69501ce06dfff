"""Checks of the arguments of simulations."""

import numpy as np

from departing.model.errors import InputError
from departing.model.instance import Instance

MOST_USERS = 10**15
LONGEST = 10**9


def whole(field: str, value: int, most: int | None = None) -> int:
    """`value` if it is a whole number from 1, and not above `most`, or a sentence."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{field} is {value!r}; expected a whole number from 1.")
    if most is not None and value > most:
        raise InputError(f"{field} is {value}; at most {most:.0e} can be simulated.")
    return int(value)


def check_stays(instance: Instance, max_steps: int | None) -> int | None:
    """`max_steps` if it is right; where there is none, raise if some type stays practically for ever."""
    if max_steps is not None:
        return whole("max_steps", max_steps)
    stays = 1 / instance.leave
    if stays.max() > LONGEST:
        a, x = np.unravel_index(stays.argmax(), stays.shape)
        raise InputError(
            f"Type {instance.types[x]!r} stays {stays.max():.3g} steps on average in category "
            f"{instance.categories[a]!r}, too long to simulate; set max_steps, or use evaluate."
        )
    return None
