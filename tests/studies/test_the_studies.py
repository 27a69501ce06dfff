from pathlib import Path

import pytest

from departing.planning.plan import plan
from departing.studies.definition import load_study

FOLDER = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("all-learners", 2 * 2 * 11),
        ("lattice", 6 * 2),
        ("misspecified", 4 * 3 * 4),
        ("open-problems", 6 * 20 * 5),
        ("paper", 2 * 14 * 20),
    ],
)
def test_the_studies_of_this_repository_are_right(name, runs):
    study = load_study(FOLDER / f"{name}.toml")
    assert len({job.key for job in study.jobs}) == runs


def test_the_study_of_the_open_problems_has_instances_that_are_worth_it():
    study = load_study(FOLDER / "open-problems.toml")
    sure = [case.instance for case in study.cases if case.group.endswith("-sure")]
    assert sum(1 - instance.best_fixed[1] / plan(instance).lower >= 0.005 for instance in sure) >= len(sure) / 2


def test_every_study_is_looked_at():
    assert sorted(path.stem for path in FOLDER.glob("*.toml")) == [
        "all-learners",
        "lattice",
        "misspecified",
        "open-problems",
        "paper",
    ]
