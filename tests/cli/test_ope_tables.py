import json

import pandas as pd
import pytest
from rich.console import Console

import departing as dp
from departing.cli.tables.ope import ope_values, overlap_table, value_table

SITE = dp.Instance([0.6, 0.4], [[0.7, 0.2], [0.3, 0.6]], depart=0.7)


@pytest.fixture(scope="module")
def value():
    seen = dp.sample_log(SITE, 1000, 1)
    log = dp.read_log(pd.DataFrame(seen.columns() | {"departed": seen.outcome >= 2}))
    return dp.off_policy_value(log, dp.Fixed(0), types=1, bootstrap=20)


def printed(table):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_tables_show_every_estimate_and_step(value):
    text = printed(value_table("always [news]", value))
    assert "Clicks per user of always [news]" in text
    for name, estimate in (("DM", value.dm), ("PDIS", value.pdis), ("DR", value.dr)):
        line = next(line for line in text.splitlines() if f"({name})" in line)
        assert f"{estimate.value:.4f}" in line
        assert f"{estimate.lower:.4f} to {estimate.upper:.4f}" in line
    rows = [line for line in printed(overlap_table(value)).splitlines() if "%" in line]
    assert len(rows) == min(len(value.overlap), 8)
    assert str(value.overlap[0].users) in rows[0]


def test_the_values_are_plain(value):
    values = json.loads(json.dumps(ope_values("always news", value)))
    assert values["estimates"]["dr"]["value"] == value.dr.value
    assert values["overlap"][0]["users"] == value.overlap[0].users
    assert values["horizon"] == value.horizon
