import subprocess
import sys

import pytest

import departing


def test_the_list_of_public_names_is_complete_and_sorted():
    assert departing.__all__ == sorted(departing.__all__)
    assert set(departing.__all__) == set(departing._HOME)
    assert len(departing.__all__) <= 40
    assert dir(departing) == sorted([*departing.__all__, "__version__"])


@pytest.mark.parametrize("name", departing.__all__)
def test_every_public_name_exists_and_is_documented(name):
    assert getattr(departing, name).__doc__


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        departing.nothing  # noqa: B018


def test_importing_brings_in_nothing_heavy():
    code = (
        "import sys, departing, departing.cli\n"
        "heavy = {'numba', 'matplotlib', 'duckdb', 'scipy', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_one_that_is_installed():
    from importlib.metadata import version

    assert departing.__version__ == version("departing-bandits")
