import io

from rich.console import Console

import departing as dp
from departing.cli.tables.instance import instance_tables


def test_tables_of_instances_show_names_and_values():
    instance = dp.Instance([1.0], [[0.5]], 0.5, 0.25, categories=["news"], types=["fan"])
    console = Console(width=120, record=True, file=io.StringIO())
    for table in instance_tables(instance, 120):
        console.print(table)
    text = console.export_text()
    for word in ("news", "fan", "depart after click", "0.25", "value of the fixed policy"):
        assert word in text


def test_tables_of_instances_show_rewards_horizon_and_segments():
    segments = dp.Segments(["de", "fr"], [0.75, 0.25], [[0.625, 0.375], [0.125, 0.875]])
    click = [[0.5, 0.2], [0.3, 0.4]]
    instance = dp.Instance(None, click, 0.5, reward=[1, 17.5], unit="euro", horizon=9, segments=segments)
    console = Console(width=120, record=True, file=io.StringIO())
    for table in instance_tables(instance, 120):
        console.print(table)
    text = console.export_text()
    for words in ("euro", "17.5", "at most 9 recommendations", "fr (25%)", "0.875"):
        assert words in text
