import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """Address of a store: a file, or a database of PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "s.sqlite")
    return request.getfixturevalue("postgres").new()
