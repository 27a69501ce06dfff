"""A number known to lie between two others."""

from dataclasses import dataclass

# Half the gap between 1 and the next double: the relative error of one rounded operation.
ROUNDING = 2.0**-53
# More than the error of one operation whose result is too small to have all its digits.
UNDERFLOW = 2.0**-1073


@dataclass(frozen=True)
class Bounds:
    """`lower` ≤ the exact value ≤ `upper`, rounding included.

    >>> Bounds(1.0, 1.5).gap
    0.5
    """

    lower: float
    upper: float

    @property
    def value(self) -> float:
        """The middle of the bracket."""
        return self.lower + (self.upper - self.lower) / 2

    @property
    def gap(self) -> float:
        """How far the value may be from the other end."""
        return self.upper - self.lower

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper
