"""Examples of the README and the docs run in a folder of their own, so that what they write is not left behind."""

import pytest


@pytest.fixture(autouse=True)
def _own_folder(request, tmp_path, monkeypatch):
    if request.node.path.suffix == ".md":
        monkeypatch.chdir(tmp_path)
