"""Bounds: an interval that contains an exact value."""

from dataclasses import dataclass

# Half the gap between 1 and the next double: the relative error of one rounded operation.
ROUNDING = 2.0**-53
# Above the absolute error of one operation whose result is subnormal (2^-1074 at most).
UNDERFLOW = 2.0**-1073


@dataclass(frozen=True)
class Bounds:
    """Interval with `lower` ≤ exact value ≤ `upper`, rounding errors included.

    Parameters
    ----------
    lower, upper : float
        Ends of the interval, in expected clicks per user.

    Examples
    --------
    >>> Bounds(1.0, 1.5).gap
    0.5
    >>> 1.2 in Bounds(1.0, 1.5)
    True
    """

    lower: float
    upper: float

    @property
    def value(self) -> float:
        """Midpoint of the interval."""
        return self.lower + (self.upper - self.lower) / 2

    @property
    def gap(self) -> float:
        """Width of the interval."""
        return self.upper - self.lower

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper
