"""Run the study of peers: `python -m benchmarks.peer_learners {tune,run,online,own,tables,page} [PEER…]`.

`run` runs the peers, or those named, `own` the learners of this package, and `online` peers of Vowpal Wabbit with one
update after every step. All of them resume: delete the file of a learner in
`benchmarks/peer_learners/results/` to repeat its runs.
`tables` prints the kept results, and `page` writes them to the page of the docs, with the plot.
"""

import sys

from benchmarks.peer_learners import settings, study

if __name__ == "__main__":
    command, chosen = (sys.argv[1:2] or ["tables"])[0], sys.argv[2:]
    if command == "tune":
        from benchmarks.peer_learners.tuning import run_tuning

        run_tuning(chosen or list(settings.GRIDS))
    elif command == "run":
        study.run_study(chosen or settings.PEERS)
    elif command == "own":
        study.run_study(chosen or settings.OWN)
    elif command == "online":
        study.run_study(chosen or [peer for peer in settings.PEERS if peer.startswith("vw-")], online=True)
    elif command in ("tables", "page"):
        from benchmarks.peer_learners import tables

        if command == "page":
            tables.write_page()
        else:
            print("\n\n".join(f"{name}\n\n{table}" for name, table in tables.all_tables().items()))
    else:
        sys.exit(f"command is {command}; expected tune, run, own, online, tables or page.")
