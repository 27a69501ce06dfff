"""Execute the notebooks of the docs and write them with their outputs: python docs/notebook.py [FOLDER].

Outputs go to the notebooks themselves, or with a FOLDER to copies there. A cell that raises stops it with an error.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "tutorials"
SECONDS = 300  # for one cell: compilation of the planner included


def execute(path: Path) -> nbformat.NotebookNode:
    """Execute a notebook in an empty folder; keep nothing that depends on the machine or the time."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where).execute()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        if cell.cell_type == "code":  # messages such as the one about compilation
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(folder: Path | None = None) -> None:
    """Execute all notebooks."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(execute(path), path if folder is None else folder / path.name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
