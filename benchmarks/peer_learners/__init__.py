"""Learners of other libraries compared with ours; `python -m benchmarks.peer_learners` runs the whole study."""

import sys
from importlib.util import find_spec
from statistics import median

from benchmarks.common import Row

USERS, SEEDS = 10**5, range(1000, 1005)
# Peer, and the smallest ratio of its median regret to that of Bayes on the hard instance.
PEERS = {"vw-rnd-return": 1, "linucb-click": 1, "thompson-mabwiser": 10}


def rows():
    """Compare three peers with Bayes on the hard instance, with fewer users and seeds than the study."""
    if missing := [name for name in ("vowpalwabbit", "mabwiser") if find_spec(name) is None]:
        print(f"Skipped: {', '.join(missing)} not installed; pip install -e '.[bench]'", file=sys.stderr)
        return []
    from benchmarks.peer_learners.study import run_one

    def regret(peer):
        return median(run_one(peer, "hard", seed, USERS)["regret"][-1] for seed in SEEDS)

    own, results = regret("bayes"), []
    for peer, limit in PEERS.items():
        other = regret(peer)
        note = f"{other:.0f} against {own:.0f} clicks, median of {len(SEEDS)} seeds, 10^5 users"
        results.append(Row(f"{peer}: regret relative to Bayes, hard instance", other / own, "×", limit, note=note))
    return results
