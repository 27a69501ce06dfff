"""Plot of a run of a learner: regret, lower bound, and policies over time."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import departing as dp
from departing.learning.baselines import ULCB, Uniform
from departing.model.examples import blog, magazine
from departing.simulation.learning_plot import LearningCurves, draw_learning
from departing.simulation.policy_use import OTHER, PolicyUse, main_uses, merge_uses, policy_uses, short_text

LONG = ["a category with a name that is far too long for a plot", "another one that is hardly any shorter", "c"]
UNSURE = dp.Instance([0.4, 0.6], [[0.7, 0.3], [0.3, 0.6], [0.5, 0.5]], depart=0.5, categories=LONG)


def texts(figure):
    return [each.get_text() for each in figure.texts]


def line_labels(axes):
    return [line.get_label() for line in axes.lines]


def test_the_plot_of_a_learner_shows_regret_bound_and_policies(tmp_path):
    learner = dp.Frozen(dp.Threshold(1, 2, 0), 2)
    run = dp.simulate(blog(), learner, users=1000, seed=1, optimum=0.66)
    figure = run.plot(tmp_path / "run.png", bound=dp.regret_bound(blog(), 1000))
    assert (tmp_path / "run.png").stat().st_size > 0
    regret, policies = figure.axes
    assert regret.get_ylabel() == "expected regret (clicks)"
    assert [label.split(":")[0] for label in line_labels(regret)] == ["learner", "best fixed category", "lower bound"]
    assert (regret.get_xscale(), regret.get_yscale(), policies.get_xscale()) == ("log", "log", "log")
    assert regret.get_xlim() == policies.get_xlim()
    assert np.array_equal(regret.lines[0].get_ydata(), run.regret)
    assert [patch.get_label() for patch in policies.patches] == ["sports × 2, then economics"]
    loss = 0.66 - dp.evaluate(blog(), dp.Threshold(1, 2, 0)).value
    listed = ["policy", "users", "loss per user", "sports × 2, then economics", "100%", f"{loss:.3g}"]
    assert texts(figure)[:6] == listed
    assert "single runs may stay below it" in texts(figure)[-1]
    assert len(run.plot().texts) == 6


def test_shares_of_policies_sum_to_one():
    run = dp.simulate(magazine(), Uniform(3, seed=1), users=5000, seed=1, optimum=3.0)
    _, policies = run.plot().axes
    top = policies.patches[-1].get_data()
    assert len(policies.patches) == 3
    assert top.values == pytest.approx(1)
    assert (top.edges[0], top.edges[-1]) == (1, 5000)
    uses = policy_uses(run.regret_curve)
    assert np.sum([use.users for use in uses], axis=0) == pytest.approx(np.diff(run.checkpoints, prepend=0))
    assert sum(use.lost for use in uses) == pytest.approx(run.regret[-1])


class Own:
    """Learner that does not report its policies."""

    def recommend(self, users):
        return np.zeros(len(users), np.int64)

    def observe(self, users, categories, outcomes):
        pass


def test_a_learner_without_policies_has_realised_regret_only():
    (axes,) = dp.simulate(blog(), Own(), users=100, seed=1).plot().axes
    assert axes.get_ylabel() == "realised regret (clicks)"
    assert axes.get_xlabel() == "users"


def test_several_runs_are_drawn_with_their_median():
    runs = [dp.simulate(blog(), Uniform(2, seed=seed), users=500, seed=seed, optimum=0.65) for seed in range(3)]
    uses = merge_uses([policy_uses(run.regret_curve) for run in runs])
    regret, fixed = np.array([run.regret for run in runs]), 0.01 * runs[0].checkpoints
    figure = draw_learning(LearningCurves(runs[0].checkpoints, regret, True, fixed, uses, None, "uniform on blog"))
    labels = line_labels(figure.axes[0])
    assert labels[3].startswith("median of 3 runs: ")
    assert len(labels) == 5
    assert sum(use.users.sum() for use in uses) == 1500
    assert texts(figure)[-1] == "uniform on blog"


def use(text, users, loss):
    return PolicyUse(text, np.array(users, float), loss * sum(users))


def test_main_policies_are_ranked_over_the_log_scale_of_users():
    uses = [use("a", [1, 0, 0], 0.5), use("b", [0, 9, 0], 0.2), use("c", [0, 1, 80], 0.1), use("d", [0, 0, 10], 0.3)]
    assert [each.text for each in main_uses(uses, 2)] == ["c", "b", OTHER]
    assert [each.text for each in main_uses(uses, 3)] == ["c", "b", "d", "a"]
    rest = main_uses(uses, 2)[-1]
    assert rest.users.tolist() == [1, 0, 10]
    assert rest.loss == pytest.approx((0.5 + 3) / 11)


def test_short_texts_describe_the_first_steps():
    names = dp.Instance([0.5, 0.5], [[0.6, 0.3], [0.3, 0.5]], depart=0.5, categories=["news", "sport"])
    assert short_text(dp.Fixed(1), names) == "always sport"
    assert short_text(dp.Greedy(names), names) == "news, after a no-click sport, …"
    assert short_text(dp.Alpha(names, [[1.0, 1.0]], [1]), names) == "sport × 2, …"
    assert short_text(ULCB(2)._block()[0][0], names) == "always news"
    table = dp.Table(np.zeros((1, 2, 4), int), [1], dp.Fixed(0))
    assert short_text(table, names) == "sport, news, …"


@pytest.mark.parametrize("bound", [False, True])
def test_labels_do_not_overlap_and_stay_inside(bound):
    policies = [dp.Walk([a, b], then=c) for a in range(3) for b in range(3) for c in range(3)]
    learner = dp.UCBHybrid([*policies, dp.Greedy(UNSURE)], users=10**5, tau=1.0, categories=3)
    run = dp.simulate(UNSURE, learner, users=10**5, seed=1)
    limit = dp.regret_bound(UNSURE, 10, alternatives=[UNSURE.replace(click=UNSURE.click[::-1])]) if bound else None
    figure = run.plot(bound=limit)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    artists = [*figure.texts, figure.axes[0].get_legend()]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            artists += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            artists.append(axis.label)
    shown = [each for each in artists if each.get_visible() and getattr(each, "get_text", lambda: "legend")()]
    boxes = [each.get_window_extent(renderer) for each in shown]
    assert len(boxes) > 35
    for box in boxes:
        assert min(box.x0, box.y0) >= -1
        assert box.x1 <= figure.bbox.width + 1
        assert box.y1 <= figure.bbox.height + 1
    for one, other in combinations(boxes, 2):
        apart = min(one.x1, other.x1) - max(one.x0, other.x0), min(one.y1, other.y1) - max(one.y0, other.y0)
        assert min(apart) <= 1


def test_a_site_that_changes_has_linear_axes_and_no_line_of_a_category_without_loss():
    before = dp.Instance([0.5, 0.5], [[0.8, 0.7], [0.2, 0.1]], 0.5)
    site = dp.NonStationaryInstance.jump(before, before.replace(click=before.click[::-1]), at=200)
    regret = dp.simulate(site, Uniform(2, seed=1), users=400, seed=1).plot().axes[0]
    assert (regret.get_xscale(), regret.get_yscale()) == ("linear", "linear")
    assert [label.split(":")[0] for label in line_labels(regret) if label[0] != "_"] == ["learner"]
    assert regret.get_ylim()[0] == 0
