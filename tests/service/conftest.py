import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """Where to keep a store: in a file, or in PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "s.sqlite")
    return request.getfixturevalue("postgres").new()
