"""The aggregate engine: a trillion users against a million."""

import departing as dp
from benchmarks.common import Row, cpu_seconds
from departing.model.examples import blog, magazine


def rows():
    rows = []
    settings = [
        ("the paper's example, always sports", blog(), dp.Fixed(1)),
        ("the paper's example, sports × 6, then economics", blog(), dp.Threshold(first=1, steps=6, then=0)),
    ]
    for where, instance, policy in settings:
        small, large = _times(instance, policy, 10**12)
        rows.append(
            Row(f"1e12 / 1e6 users, {where}", large / small, "×", 2, at_least=False, note=f"{large * 1e3:.2g} ms")
        )
        rows.append(Row(f"1e12 users, {where}", large * 1e3, "ms", 50, at_least=False))
    # Here a trillion users have so many more distinct counts that the ratio exceeds 2; reported without a limit.
    for where, instance, policy, users in (
        ("the paper's example, greedy", blog(), dp.Greedy(blog()), 10**12),
        ("the magazine, always news", magazine(), dp.Fixed(0), 10**12),
        ("the magazine, greedy", magazine(), dp.Greedy(magazine()), 10**9),
    ):
        small, large = _times(instance, policy, users)
        note = f"{large * 1e3:.3g} ms; no limit"
        rows.append(
            Row(f"{users:.0e} / 1e6 users, {where}", large / small, "×", float("inf"), at_least=False, note=note)
        )
    return rows


def _times(instance, policy, users):
    return cpu_seconds(
        lambda: dp.simulate(instance, policy, users=10**6, engine="aggregate"),
        lambda: dp.simulate(instance, policy, users=users, engine="aggregate"),
    )
