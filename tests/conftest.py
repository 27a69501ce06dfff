import hypothesis
import pytest

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
