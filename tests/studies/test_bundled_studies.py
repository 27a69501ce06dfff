from pathlib import Path

import pytest

from departing.planning.plan import plan
from departing.studies.definition import load_study

FOLDER = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("all-learners", 2 * 2 * 11),
        ("fresh-problems", 6 * 20 * 5),
        ("lattice", 6 * 2),
        ("misspecified", 4 * 3 * 4),
        ("open-problems", 6 * 20 * 5),
        ("paper", 2 * 14 * 100),
        ("ucb-hybrid", 2 * 8 * 20),
    ],
)
def test_bundled_studies_have_the_expected_number_of_runs(name, runs):
    study = load_study(FOLDER / f"{name}.toml")
    assert len({job.key for job in study.jobs}) == runs


def test_half_of_the_instances_with_sure_departure_reward_planning():
    study = load_study(FOLDER / "open-problems.toml")
    sure = [case.instance for case in study.cases if case.group.endswith("-sure")]
    assert sum(1 - instance.best_fixed[1] / plan(instance).lower >= 0.005 for instance in sure) >= len(sure) / 2


def test_every_study_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.toml")) == [
        "all-learners",
        "fresh-problems",
        "lattice",
        "misspecified",
        "open-problems",
        "paper",
        "ucb-hybrid",
    ]
