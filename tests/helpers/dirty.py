"""A log with every kind of dirt that real logs have, as text under usual but not default column names."""

from datetime import datetime, timedelta

import numpy as np

COLUMNS = ("uid", "ts", "section", "is_click", "churned", "prob", "item")
# Kind of dirt: the column, and the values that replace regular ones. Each is put into two rows.
DIRT = {
    "user is missing": ("uid", [None]),
    "user is a word for missing": ("uid", ["NULL", "NaN"]),
    "user is whitespace": ("uid", ["  "]),
    "time is missing": ("ts", [None]),
    "time is a word for missing": ("ts", ["NaT"]),
    "time is no time": ("ts", ["soon"]),
    "time has a year of two digits": ("ts", ["01-05-24"]),
    "time has month 13": ("ts", ["2024-13-01 00:00:00"]),
    "category is missing": ("section", [None]),
    "category is a word for missing": ("section", ["None", "N/A"]),
    "category is whitespace": ("section", ["\u00a0 "]),
    "category in another case": ("section", ["News"]),
    "category with spaces": ("section", [" news "]),
    "category is misspelt": ("section", ["sprot"]),
    "category with quotes and commas": ("section", ['it\'s "odd", really']),
    "category in another script": ("section", ["новости"]),
    "click is missing": ("is_click", [None]),
    "click is a word for missing": ("is_click", ["n/a"]),
    "click is unknown": ("is_click", ["perhaps"]),
    "click in another case": ("is_click", ["YES", "No"]),
    "click with spaces": ("is_click", [" true "]),
    "click as a float": ("is_click", ["1.0", "0.00"]),
    "click as a phrase": ("is_click", ["no-click", "Clicked"]),
    "departure is missing": ("churned", [None]),
    "departure is a word for missing": ("churned", ["null"]),
    "departure is unknown": ("churned", ["maybe"]),
    "departure as a word": ("churned", ["stayed"]),
    "propensity is missing": ("prob", [None]),
    "propensity is 0": ("prob", ["0"]),
    "propensity is above 1": ("prob", ["1.5"]),
    "propensity is no number": ("prob", ["x"]),
    "time with a zone": ("ts", ["2024-02-01T10:00:00+02:00", "2024-02-01T10:00:00Z"]),
    "time with a named month": ("ts", ["5 Feb 2024 10:00"]),
    "time with a comma": ("ts", ["2024-02-01 10:00:00,250"]),
    "time is a default in the future": ("ts", ["2999-12-31 00:00:00", "2100-01-01"]),
    "time is a default in the past": ("ts", ["1970-01-01 00:00:00", "1900-01-01T00:00:00"]),
}
ROW_DIRT = ("duplicate row", "two events at one time", "event after a departure", "departure in another word")


def dirty_log(seed=0, users=400):
    """Rows of text or None in the order of `COLUMNS`."""
    random = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        time = datetime(2024, 1, 1) + timedelta(minutes=int(random.integers(0, 60 * 24 * 60)))
        steps = int(random.integers(3, 12))
        for step in range(steps):
            time += timedelta(minutes=int(random.integers(1, 3000)))
            category = ("news", "sport", "film")[random.integers(3)]
            departed = str(int(step == steps - 1 and user % 2))
            clicked = str(int(random.random() < 0.5))
            rows.append([f"user-{user}", str(time), category, clicked, departed, "0.25", f"{random.integers(99)}"])
    clean = random.permutation(len(rows)).tolist()
    for column, values in DIRT.values():
        for i in range(2):
            rows[clean.pop()][COLUMNS.index(column)] = values[i % len(values)]
    departures = [rows[i] for i in clean if rows[i][4] == "1"]
    clean = [i for i in clean if rows[i][4] == "0"]  # a second departure would be an event after the first
    for _ in range(3):
        rows.append(list(rows[clean.pop()]))
        tie = list(rows[clean.pop()])
        rows.append([*tie[:6], "another item"])
    for row in departures[:3]:
        rows.append([row[0], "2024-04-01 00:00:00", "news", "1", "0", "0.25", "1"])
        row[4] = "left"
    return [tuple(rows[i]) for i in random.permutation(len(rows))]
