"""Summaries and plots of runs and comparisons."""

from matplotlib.figure import Figure

import departing as dp
from departing.model.examples import blog


def test_a_run_describes_itself():
    run = dp.simulate(blog(), dp.Fixed(0), users=1000, seed=1, max_steps=2)
    assert run.describe().startswith("1,000 users clicked 0.")
    lines = run.summary().splitlines()
    assert lines[0] == f"Users: 1,000 (engine {run.engine}, seed 1)"
    assert lines[-1].startswith("Truncated users: ")


def test_the_plot_of_a_policy_shows_clicks_and_that_of_a_learner_regret_too(tmp_path):
    run = dp.simulate(blog(), dp.Fixed(0), users=1000, seed=1)
    assert len(run.plot(tmp_path / "run.png").axes) == 1
    assert (tmp_path / "run.png").stat().st_size > 0
    run = dp.simulate(blog(), dp.Frozen(dp.Fixed(0), 2), users=1000, seed=1, optimum=0.65)
    figure = run.plot()
    assert isinstance(figure, Figure)
    assert [axes.get_ylabel() for axes in figure.axes] == ["share of users", "expected regret (clicks)"]
    bound = dp.regret_bound(blog(), 1000)
    labels = [line.get_label() for line in run.plot(bound=bound).axes[1].lines]
    assert labels == ["learner", "lower bound"]


def test_a_comparison_describes_itself():
    result = dp.compare(blog(), dp.Fixed(0), dp.Fixed(1), users=1000)
    assert result.describe().startswith("The first policy gets ")
    assert "Difference: " in result.summary()
    assert len(result.summary().splitlines()) == 5
