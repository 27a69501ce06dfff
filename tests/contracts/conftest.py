import pytest

from helpers import postgres as pg


@pytest.fixture(scope="session")
def postgres():
    with pg.running() as server:
        yield server
