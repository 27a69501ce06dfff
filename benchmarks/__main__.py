"""Run all benchmarks, or those named on the command line, and print their tables."""

import sys

from rich.console import Console

from benchmarks import (
    aggregate,
    exact,
    fitting,
    lanes,
    learning,
    logs,
    movielens,
    offpolicy,
    planning,
    reading,
    serve,
    startup,
)
from benchmarks.common import table

ALL = {
    "lanes": lanes,
    "aggregate": aggregate,
    "exact": exact,
    "planning": planning,
    "learning": learning,
    "logs": logs,
    "fitting": fitting,
    "movielens": movielens,
    "offpolicy": offpolicy,
    "reading": reading,
    "serve": serve,
    "startup": startup,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(ALL)
    if unknown := set(names) - set(ALL):
        sys.exit(f"There is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(ALL)}.")
    console, missed = Console(width=150), 0
    for name in names:
        rows = ALL[name].rows()
        console.print(table(name, rows))
        missed += sum(not row.kept for row in rows)
    sys.exit(1 if missed else 0)
