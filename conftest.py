"""Examples of the README and the docs run in an empty folder; those of the docs count as slow tests."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.suffix == ".md" and item.path.name != "README.md":
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _empty_folder(request, tmp_path, monkeypatch):
    if request.node.path.suffix == ".md":
        monkeypatch.chdir(tmp_path)
