"""Summaries and plots of runs and comparisons."""

import departing as dp
from departing.model.examples import blog


def test_a_run_describes_itself():
    run = dp.simulate(blog(), dp.Fixed(0), users=1000, seed=1, max_steps=2)
    assert run.describe().startswith("1,000 users clicked 0.")
    lines = run.summary().splitlines()
    assert lines[0] == f"Users: 1,000 (engine {run.engine}, seed 1)"
    assert lines[-1].startswith("Truncated users: ")


def test_the_plot_of_a_policy_shows_clicks(tmp_path):
    run = dp.simulate(blog(), dp.Fixed(0), users=1000, seed=1)
    (axes,) = run.plot(tmp_path / "run.png").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clicks of a user", "share of users")
    assert (tmp_path / "run.png").stat().st_size > 0


def test_a_comparison_describes_itself():
    result = dp.compare(blog(), dp.Fixed(0), dp.Fixed(1), users=1000)
    assert result.describe().startswith("The first policy gets ")
    assert "Difference: " in result.summary()
    assert len(result.summary().splitlines()) == 5
