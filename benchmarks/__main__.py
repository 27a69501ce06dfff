"""Run all benchmarks, or those named on the command line, and print their tables."""

import sys

from rich.console import Console

from benchmarks import (
    aggregate,
    assign,
    changing_users,
    checks,
    decision,
    exact,
    fitting,
    lanes,
    learning,
    learning_segments,
    logs,
    movielens,
    offpolicy,
    peer_learners,
    planning,
    reading,
    report,
    requirements,
    segments,
    serve,
    spark,
    startup,
    unused_features,
)
from benchmarks.common import table

ALL = {
    "lanes": lanes,
    "aggregate": aggregate,
    "exact": exact,
    "planning": planning,
    "learning": learning,
    "learning_segments": learning_segments,
    "changing_users": changing_users,
    "peer_learners": peer_learners,
    "logs": logs,
    "fitting": fitting,
    "segments": segments,
    "decision": decision,
    "movielens": movielens,
    "assign": assign,
    "offpolicy": offpolicy,
    "checks": checks,
    "reading": reading,
    "report": report,
    "requirements": requirements,
    "serve": serve,
    "spark": spark,
    "startup": startup,
    "unused_features": unused_features,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(ALL)
    if unknown := set(names) - set(ALL):
        sys.exit(f"Unknown benchmark {', '.join(sorted(unknown))}; available: {', '.join(ALL)}.")
    console, failed = Console(width=150), 0
    for name in names:
        rows = ALL[name].rows()
        console.print(table(name, rows))
        failed += sum(not row.passed for row in rows)
    sys.exit(1 if failed else 0)
