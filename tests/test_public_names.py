import subprocess
import sys

import pytest

import departing


def test_public_names_are_few_and_sorted():
    assert departing.__all__ == sorted(departing.__all__) == dir(departing)
    assert len(departing.__all__) <= 55


@pytest.mark.parametrize("name", departing.__all__)
def test_every_public_name_exists_and_is_documented(name):
    assert getattr(departing, name).__doc__


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        departing.nothing  # noqa: B018


def test_import_loads_no_heavy_dependency():
    code = (
        "import sys, departing, departing.cli\n"
        "heavy = {'numba', 'matplotlib', 'duckdb', 'scipy', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_equals_the_installed_one():
    from importlib.metadata import version

    assert departing.__version__ == version("departing-bandits")
