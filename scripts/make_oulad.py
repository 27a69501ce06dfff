"""Make src/departing/data/oulad.parquet: python scripts/make_oulad.py episodes_derived.csv [oulad.parquet].

The CSV has one row per assessment of a student: episode (a student in one presentation of a
module), step, code_module, assessment_type, date, click (it was submitted) and departed (unregistered before the next
was due).
"""

import sys
from pathlib import Path

import duckdb

PACKAGED = Path(__file__).parents[1] / "src" / "departing" / "data" / "oulad.parquet"


def make(source: Path, target: Path) -> None:
    """Write the Parquet file of a CSV file."""
    columns = {
        "user": "episode::USMALLINT",
        "time": "step::UTINYINT",
        "day": "date::UTINYINT",
        "category": "assessment_type",
        "module": "code_module",
        "clicked": "click::BOOLEAN",
        "departed": "departed::BOOLEAN",
    }
    listed = ", ".join(f'{value} AS "{name}"' for name, value in columns.items())
    form = "FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, COMPRESSION_LEVEL 22, ROW_GROUP_SIZE 1048576"
    form += ", DICTIONARY_SIZE_LIMIT 1000"  # so that users are stored as differences from the row before
    with duckdb.connect(config={"threads": 1}) as database:
        rows = f"SELECT {listed} FROM read_csv('{source}') ORDER BY episode, step"
        database.execute(f"COPY ({rows}) TO '{target}' ({form})")


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else PACKAGED)
