"""The notebook of the docs: it runs, and what is committed is small and independent of the machine."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOK = DOCS / "tutorials" / "notebook.ipynb"


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Outputs of all code cells that are text, without HTML and images."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    done = subprocess.run([sys.executable, DOCS / "notebook.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    committed = nbformat.read(NOTEBOOK, as_version=4)
    executed = nbformat.read(tmp_path / NOTEBOOK.name, as_version=4)
    assert [cell.source for cell in executed.cells] == [cell.source for cell in committed.cells]
    for ran, shown in zip(executed.cells, committed.cells, strict=True):
        if ran.cell_type == "code":  # the same kinds of output; `python docs/notebook.py` regenerates them
            kinds = [[sorted(each.get("data", {})) for each in cell.outputs] for cell in (ran, shown)]
            assert kinds[0] == kinds[1], ran.source


def test_the_committed_notebook_is_executed_and_portable():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(output.output_type != "error" for cell in code for output in cell.outputs)
    content = NOTEBOOK.read_text(encoding="utf-8")
    assert len(content) < 300_000
    assert not re.search(r"/(home|tmp|root|Users)/|C:\\\\", content)  # no path of the machine that executed it
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}
    assert any("clicks per user" in text for text in texts(notebook))
