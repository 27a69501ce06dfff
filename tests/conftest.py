import sys

import hypothesis
import pytest
from numba.core import event

from helpers.postgres import running

hypothesis.settings.register_profile(
    "departing", deadline=None, max_examples=60, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.load_profile("departing")


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server that all tests of a process share."""
    with running() as server:
        yield server


class Untraced(event.Listener):
    """Suspends the measurement of coverage while numba compiles, which would take 1.6 times as long."""

    depth, tracer = 0, None

    def on_start(self, event):
        if not self.depth:
            self.tracer = sys.gettrace()
            sys.settrace(None)
        self.depth += 1

    def on_end(self, event):
        self.depth -= 1
        if not self.depth:
            sys.settrace(self.tracer)


event.register("numba:compile", Untraced())
