"""Commands and links in the README and the docs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import departing
from departing.model.examples import magazine
from helpers.commands import check_block

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in PAGES
    for i, block in enumerate(re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_commands_print_what_the_page_shows(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_block(block)


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    departing.sample_log(magazine(), users=20_000, seed=1).save("events.csv")
    exec(code, {})
    assert capsys.readouterr().out.rstrip().endswith("news")


def test_links_between_pages_resolve():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
                assert (page.parent / target).stat().st_size, f"{page.name}: {target} is empty"


def test_the_readme_has_exactly_two_set_up_commands():
    part = re.search(r"<!-- set-up -->(.*?)<!-- end of set-up -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert re.findall(r"^python3 .*$", part[1], re.MULTILINE) == [
        "python3 -m venv .venv && . .venv/bin/activate && pip install . && departing quickstart",
        "python3 -m venv .venv && . .venv/bin/activate && pip install -e '.[test]' && pytest",
    ]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run([*command, ROOT / "docs", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "reference").glob("*.html"))
    assert [name for name in departing.__all__ if f'id="departing.{name}"' not in pages] == []
