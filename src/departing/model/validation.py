"""Checks of arguments, each a sentence if it fails."""

import numpy as np

from departing.model.errors import InputError
from departing.model.instance import Instance

MAX_USERS = 10**15
LONGEST = 10**8  # a user's clicks are counted in 32 bits in lanes; beyond 40 times this nobody comes


def check_int(field: str, value: float, least: int = 1, most: int | None = None) -> int:
    """`value` if it is a whole number from `least` to `most`; 1e6 is one."""
    whole = not isinstance(value, bool) and isinstance(value, int | np.integer)
    if (not whole and not (isinstance(value, float) and value.is_integer())) or value < least:
        raise InputError(f"{field} is {value!r}; expected an integer ≥ {least}.", field)
    if most is not None and value > most:
        raise InputError(f"{field} is {value!r:.40}; at most {most:g} are allowed.", field)
    return int(value)


def check_float(field: str, value: float, least: float, most: float) -> float:
    """`value` if it is a number from `least` to `most`."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        number = float(value) if real else np.nan
    except OverflowError:  # a whole number of hundreds of digits
        number = np.inf
    if not least <= number <= most:
        wanted = f"a number from {least:g}" + (f" to {most:g}" if np.isfinite(most) else "")
        raise InputError(f"{field} is {value!r:.40}; expected {wanted}.", field)
    return number


def check_positive(field: str, value: float, most: float = np.inf) -> float:
    """`value` if it is a number above 0, and at most `most`."""
    try:
        number = check_float(field, value, 0.0, most)
    except InputError:
        number = 0.0
    if number == 0:
        allowed = f"above 0 and at most {most:g}" if most < np.inf else "above 0"
        raise InputError(f"{field} is {value!r:.40}; expected a number {allowed}.", field)
    return number


def check_fraction(field: str, value: float) -> float:
    """`value` if it is a number above 0 and below 1."""
    try:
        number = check_float(field, value, 0.0, 1.0)
    except InputError:
        number = 0.0
    if number in (0, 1):
        raise InputError(f"{field} is {value!r:.40}; expected a number above 0 and below 1.", field)
    return number


def check_seed(seed: int) -> int:
    """`seed` if it is one."""
    return check_int("seed", seed, least=0)


def check_instance(instance: object) -> None:
    """Raise unless `instance` is one."""
    if not isinstance(instance, Instance):
        raise InputError(f"instance is {instance!r:.80}; expected an Instance, such as Instance.load(path) gives.")


def check_max_steps(instance: Instance, max_steps: int | None) -> int | None:
    """`max_steps` if it is right; where there is none, raise if some type stays practically for ever."""
    if max_steps is not None:
        return check_int("max_steps", max_steps)
    stays = 1 / instance.departure_probabilities
    if stays.max() > LONGEST:
        a, x = np.unravel_index(stays.argmax(), stays.shape)
        raise InputError(
            f"Type {instance.types[x]!r} stays {stays.max():.3g} steps on average in category "
            f"{instance.categories[a]!r}, too long to simulate; set `max_steps`, or use evaluate."
        )
    return None
