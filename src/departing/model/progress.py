"""Progress of long computations."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the number of completed parts and the total number of parts."""
