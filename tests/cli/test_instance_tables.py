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
