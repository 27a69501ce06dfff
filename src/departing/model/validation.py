"""Checks of arguments; each raises an InputError that names the argument, its value and what is accepted."""

from collections.abc import Collection

import numpy as np

from departing.model.errors import InputError
from departing.model.instance import Instance

MAX_USERS = 10**15  # sums of clicks of all users stay exact in 64-bit integers
# Mean number of steps beyond which simulation is refused. Clicks of a user are counted in 32 bits; a stay of 40 times
# the mean, which would overflow, has probability e^-40.
MAX_MEAN_STEPS = 10**8
# Far above what short histories identify; bounds the (F M)² entries of the information matrix of a fit.
MAX_TYPES = 64
# Arguments of `Instance.replace` that remove an extension of the model.
REMOVED = {"reward": "reward=None, unit='clicks'", "horizon": "horizon=None", "segments": "segments=None"}
MIN_RESAMPLES = 20  # with fewer, the ends of a 95% interval are the extremes of the sample


def check_int(field: str, value: float, least: int = 1, most: int | None = None) -> int:
    """Return `value` if it is an integer from `least` to `most`; 1e6 is one."""
    integer = not isinstance(value, bool) and isinstance(value, int | np.integer)
    if (not integer and not (isinstance(value, float) and value.is_integer())) or value < least:
        raise InputError(f"{field} is {value!r}; expected an integer ≥ {least}.", field)
    if most is not None and value > most:
        raise InputError(f"{field} is {value!r:.40}; expected at most {most:g}.", field)
    return int(value)


def check_resamples(value: float) -> int:
    """Return `value` if it is a number of bootstrap resamples."""
    return check_int("bootstrap", value, MIN_RESAMPLES, 10**5)


def _as_float(value: float) -> float:
    """`value` as a float; nan if it is not a number."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        return float(value) if real else np.nan
    except OverflowError:  # an integer of hundreds of digits
        return np.inf


def check_float(field: str, value: float, least: float, most: float) -> float:
    """Return `value` if it is a number from `least` to `most`."""
    if not least <= (number := _as_float(value)) <= most:
        expected = f"a number from {least:g}" + (f" to {most:g}" if np.isfinite(most) else "")
        raise InputError(f"{field} is {value!r:.40}; expected {expected}.", field)
    return number


def check_positive(field: str, value: float, most: float = np.inf) -> float:
    """Return `value` if it is a number above 0 and at most `most`."""
    if not 0 < (number := _as_float(value)) <= most:
        limit = f" and at most {most:g}" if most < np.inf else ""
        raise InputError(f"{field} is {value!r:.40}; expected a number above 0{limit}.", field)
    return number


def check_fraction(field: str, value: float) -> float:
    """Return `value` if it is a number above 0 and below 1."""
    if not 0 < (number := _as_float(value)) < 1:
        raise InputError(f"{field} is {value!r:.40}; expected a number above 0 and below 1.", field)
    return number


def check_choice(field: str, value: str, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if value not in choices:
        raise InputError(f"{field} is {value!r:.80}; expected one of {', '.join(choices)}.", field)
    return value


def check_confidence(confidence: float) -> float:
    """Return `confidence` if it is above 0 and below 1, at most 1 - 1e-9 so that its normal quantile is finite."""
    return min(check_fraction("confidence", confidence), 1 - 1e-9)


def check_seed(seed: int) -> int:
    """Return `seed` if it is an integer ≥ 0."""
    return check_int("seed", seed, least=0)


def check_instance(instance: object, supports: Collection[str] = ()) -> None:
    """Raise unless `instance` is an Instance without extensions of the model other than `supports`."""
    if not isinstance(instance, Instance):
        own = isinstance(getattr(instance, "instance", None), Instance)
        hint = "pass its attribute `instance`" if own else "for example Instance.load(path)"
        raise InputError(f"instance is {instance!r:.80}; expected an Instance, {hint}.")
    for field in instance.extensions:
        if field not in supports:
            step = f"remove it from the instance, in Python by instance.replace({REMOVED[field]})"
            raise InputError(f"instance.{field} is set, which is not supported here; {step}.")


def check_max_steps(instance: Instance, max_steps: int | None) -> int | None:
    """Return `max_steps` if it is valid; if it is None, raise if users of some type practically never depart."""
    if max_steps is not None:
        return check_int("max_steps", max_steps)
    if instance.horizon is not None:
        return None
    mean_steps = 1 / instance.departure_probabilities
    if mean_steps.max() > MAX_MEAN_STEPS:
        a, x = np.unravel_index(mean_steps.argmax(), mean_steps.shape)
        raise InputError(
            f"Type {instance.types[x]!r} stays {mean_steps.max():.3g} steps on average in category "
            f"{instance.categories[a]!r}, too long to simulate; set `max_steps`, or use evaluate."
        )
    return None
