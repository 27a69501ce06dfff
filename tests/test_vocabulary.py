"""Phrases that the glossary replaces do not return to code, docs and pages."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".pyi", ".md", ".html", ".js", ".css", ".toml"}
REPLACED = [
    r"for ever\b",
    r"\bunless told\b",
    r"\banew\b",
    r"\bcame of it\b",
    r"\bas it should be\b",
    r"\bspeaks? against\b",
    r"\bways? of going on\b",
    r"\bas far as is known\b",
    r"\b(?:is|are|was) told\b",
    r"\bcost of myopia\b",
    r"\busers who are here\b",
    r"\bwhole numbers?\b",
    r"\bin the box\b",
    r"\bfurther.clicks\b",
    r"(?<!by )\bchances?\b",
    r"\bbrackets?\b",
    r"\bpictures?\b",
    r"\bvalue_on_log\b",
]


@pytest.mark.parametrize("phrase", REPLACED)
def test_no_replaced_phrase_is_left(phrase):
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a git checkout")
    pattern = re.compile(phrase, re.IGNORECASE)
    left = [
        f"{name}:{number}: {line.strip()}"
        for name in files.stdout.split()
        if Path(name).suffix in SUFFIXES and name != "tests/test_vocabulary.py"
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not left, "\n".join(left)
