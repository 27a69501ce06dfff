import pytest

import postgres as pg


@pytest.fixture(scope="session")
def postgres():
    if pg.binaries() is None:
        pytest.skip(pg.MISSING)
    server = pg.Postgres()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """Where to keep a store: in a file, or in PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "s.sqlite")
    return request.getfixturevalue("postgres").new()
