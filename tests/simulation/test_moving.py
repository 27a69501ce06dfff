"""Simulation of sites that change."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import departing as dp
from departing.cli import app
from departing.model.errors import InputError
from departing.simulation.policy_use import policy_uses

A = dp.Instance([0.4, 0.6], [[0.6, 0.2], [0.3, 0.5]], categories=["news", "sport"])
B = A.replace(click=[[0.2, 0.2], [0.5, 0.6]])
C = dp.Instance([0.4, 0.6], [[0.6, 0.2], [0.3, 0.5], [0.7, 0.6]], categories=["news", "sport", "music"])


def learner(seed=1, categories=2):
    return dp.Bayes(2, categories, seed=seed, growth=1.0)


def test_one_piece_equals_the_instance():
    moving = dp.simulate(dp.NonStationaryInstance([A], [0]), learner(), 500, seed=3)
    still = dp.simulate(A, learner(), 500, seed=3)
    assert moving.regret.tolist() == still.regret.tolist()
    assert moving.clicks == still.clicks


def test_regret_of_a_policy_is_against_the_optimum_of_every_piece():
    site = dp.NonStationaryInstance([A, B, A], [0, 100, 300])
    run = dp.simulate(site, dp.Fixed(0), 1000, seed=1)
    loss_a, loss_b = (dp.plan(each).value - dp.evaluate(each, dp.Fixed(0)).value for each in (A, B))
    np.testing.assert_allclose(run.regret, np.cumsum([100 * loss_a, 200 * loss_b, 700 * loss_a]), atol=1e-4)
    assert run.checkpoints.tolist() == [100, 300, 1000]
    assert run.users == run.histories.users == 1000


def test_regret_of_the_best_fixed_category_of_every_piece():
    two = dp.Instance([0.5, 0.5], [[0.8, 0.1], [0.2, 0.7]], depart=0.3, categories=["news", "sport"])
    three = dp.Instance([0.5, 0.5], [*two.click, [0.75, 0.6]], depart=0.3, categories=["news", "sport", "music"])
    site = dp.NonStationaryInstance([two, three, three], [0, 200, 500], [None, None, ["news", "sport"]])
    run = dp.simulate(site, learner(categories=["news", "sport"]), 600, seed=1)
    best = [two.best_fixed[1], three.best_fixed[1], two.best_fixed[1]]
    assert best[1] > best[0]
    optima = [dp.plan(two).value, dp.plan(three).value, dp.plan(three, allowed=["news", "sport"]).value]
    expected = np.cumsum(np.array([200, 300, 100]) * np.subtract(optima, best))
    at = np.searchsorted(run.checkpoints, [200, 500, 600])
    np.testing.assert_allclose(run.regret_curve.fixed_regret[at], expected, rtol=1e-2)
    assert any("best category of each period" in str(line.get_label()) for line in run.plot().axes[0].lines)


@pytest.mark.parametrize("options", [{}, {"open_users": 20}, {"delay": 5}])
def test_learners(options):
    site = dp.NonStationaryInstance.jump(A, B, 300)
    seen = {}
    run = dp.simulate(site, learner(), 600, seed=2, regret_progress=seen.__setitem__, **options)
    assert run.checkpoints[-1] == run.users == 600
    assert 300 in run.checkpoints
    assert run.regret_curve.changes == [300]
    assert (np.diff(run.regret) > -1e-6).all()
    assert seen[600] == pytest.approx(run.regret[-1], abs=0.5)  # values so far are rougher
    uses = policy_uses(run.regret_curve)
    assert sum(use.users.sum() for use in uses) == 600
    assert sum(use.lost for use in uses) == pytest.approx(run.regret[-1], abs=1e-6)
    assert run.plot() is not None


def test_realised_regret_is_near_the_expected_one():
    site = dp.NonStationaryInstance.jump(A, B, 30_000)
    run = dp.simulate(site, dp.Frozen(dp.Fixed(0), 2), 60_000, seed=5)
    error = abs(run.realised_regret[-1] - run.regret[-1])
    assert error < 5 * run.stderr * run.users


def test_the_catalogue_changes():
    site = dp.NonStationaryInstance([A, C, C], [0, 200, 400], [None, None, ["sport", "music"]])
    bayes = learner(categories=["news", "sport"])
    run = dp.simulate(site, bayes, 600, seed=1)
    assert bayes.retired == (0,)
    assert run.histories.counts.shape[1] == 3
    best = dp.plan(C, allowed=["sport", "music"]).value
    assert run.regret_curve.parts[-1].optimum.value == pytest.approx(best, abs=1e-5)
    unnamed = learner()
    dp.simulate(site, unnamed, 600, seed=1)
    assert unnamed.n_categories == 3
    with pytest.raises(InputError, match="fixed catalogue"):
        dp.simulate(site, dp.LatticeUCB(2, 600), 600)
    with pytest.raises(InputError, match="expected a learner"):
        dp.simulate(site, dp.Fixed(0), 600)


def test_rewards_of_all_pieces_are_in_the_curve():
    paid = {"reward": [1.0, 10.0], "unit": "euro"}
    site = dp.NonStationaryInstance.jump(A.replace(**paid), B.replace(**paid), 200)
    run = dp.simulate(site, dp.Bayes(2, 2, growth=1.0, **paid), 400, seed=1)
    assert run.regret_curve.to_frame()["reward"].to_list()[-1] == pytest.approx(run.reward)


def test_arguments_that_do_not_apply():
    with pytest.raises(InputError, match="optimum"):
        dp.simulate(dp.NonStationaryInstance.jump(A, B, 5), dp.Fixed(0), 10, optimum=1.0)


def test_command_line(tmp_path):
    dp.NonStationaryInstance.jump(A, B, 200).save(tmp_path / "site.toml")
    arguments = ["learn", str(tmp_path / "site.toml"), "uniform", "--users", "400", "--runs", "2", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--plot", str(tmp_path / "plot.svg")])
    assert result.exit_code == 0, result.output
    values = json.loads(result.output)
    assert values["regret_curve"][-1]["users"] == 400
    optimum = (dp.plan(A).value + dp.plan(B).value) / 2
    assert values["optimum"][0] <= optimum + 1e-6
    assert CliRunner().invoke(app, [*arguments, "--bound"]).exit_code != 0
