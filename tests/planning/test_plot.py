import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

import departing as dp
from departing.model.examples import blog, magazine
from departing.model.instance import CLICK, STAY
from departing.planning.belief_map import belief_map
from departing.planning.plot.layout import CategoryStyle, percent
from departing.planning.plot.policy_graph import policy_graph
from departing.plotting.figures import shorten, text_width

LONG = "a category with quite a long name that nobody can draw, "


def _many():
    return dp.random_instance("uniform", 10, 20)


def _texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.fixture(scope="module")
def plans():
    instances = {
        "one type": dp.Instance([1.0], [[0.5], [0.7]], depart=0.3),
        "blog": blog(),
        "walk": dp.Instance([0.73, 0.27], [[0.52, 0.73], [0.35, 0.82], [0.42, 0.80]]),
        "specialists": dp.random_instance("specialists", 2, 2, seed=1),
        "commits": dp.random_instance("uniform", 2, 12, seed=5),
        "magazine": magazine(),
        "five types": dp.random_instance("uniform", 5, 5, seed=3),
    }
    found = {name: dp.plan(instance) for name, instance in instances.items()}
    found["many"] = dp.plan(_many(), gap=0.5, seconds=2)
    return found


NAMES = ["one type", "blog", "walk", "specialists", "commits", "magazine", "five types", "many"]


@pytest.mark.parametrize("name", NAMES)
def test_the_shares_of_a_column_sum_to_the_survival(plans, name):
    found = plans[name]
    survival = dp.evaluate(found.instance, found.policy, gap=1e-4).distribution.survival
    for column in policy_graph(found):
        parts = sum(node.share for node in column.nodes) + column.hidden + column.committed
        assert parts == pytest.approx(column.active, abs=1e-12)
        assert column.active == pytest.approx(survival[column.step], abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_edges_carry_the_arriving_users_except_hidden_ones(plans, name):
    columns = policy_graph(plans[name])
    assert [node.share for node in columns[0].nodes] == [pytest.approx(1.0)]
    assert columns[-1].edges == ()
    for column, after in pairwise(columns):
        arriving = np.zeros(len(after.nodes))
        for edge in column.edges:
            arriving[edge.end] += edge.share
            assert not column.nodes[edge.start].committed
        shares = np.array([node.share for node in after.nodes])
        assert (arriving > 0).all()
        assert (arriving <= shares + 1e-12).all()
        assert (shares - arriving).sum() <= column.hidden + 1e-12


def test_the_blog_has_two_phases_with_exact_shares(plans):
    first, then = policy_graph(plans["blog"])
    assert [(node.category, node.steps, node.committed) for node in first.nodes + then.nodes] == [
        (1, 6, False),
        (0, 0, True),
    ]
    left = Fraction(4, 10) * Fraction(4, 10) ** 6 + Fraction(6, 10) * Fraction(39, 100) ** 6
    assert then.active == then.nodes[0].share == pytest.approx(float(left), rel=1e-12)
    assert [(edge.outcome, edge.note) for edge in first.edges] == [(CLICK, "6 clicks")]
    assert then.step == 6


def test_the_first_two_steps_of_the_magazine_are_exact(plans):
    instance = plans["magazine"].instance
    root, second = policy_graph(plans["magazine"])[:2]
    music = instance.category_index("music")
    assert root.nodes[0].category == music
    clicked, stayed = (
        float(instance.prior @ instance.outcome_probabilities[music, outcome]) for outcome in (CLICK, STAY)
    )
    assert [node.share for node in second.nodes] == pytest.approx([clicked, stayed], abs=1e-12)
    assert [(edge.outcome, edge.end) for edge in root.edges] == [(CLICK, 0), (STAY, 1)]
    assert [instance.categories[node.category] for node in second.nodes] == ["music", "news"]


def test_a_fixed_policy_is_one_node(plans):
    (column,) = policy_graph(plans["one type"])
    assert column.nodes[0].committed
    assert column.edges == ()


def test_nothing_is_drawn_after_a_committed_node(plans):
    columns = policy_graph(plans["commits"])
    assert any(node.committed for column in columns for node in column.nodes)
    assert columns[-1].committed > 0.5


def test_small_nodes_are_left_out_and_columns_stay_short():
    found = dp.plan(magazine(), gap=0.01)
    for column in policy_graph(found, 9):
        assert len(column.nodes) <= 8
        assert min(node.share for node in column.nodes) >= 0.01


@pytest.mark.parametrize("name", ["blog", "walk", "specialists", "magazine"])
def test_values_lie_between_fixed_policies_and_known_types(plans, name):
    found = plans[name]
    instance, fixed = found.instance, found.instance.fixed_values
    beliefs = belief_map(found)
    points = np.random.default_rng(1).dirichlet(np.ones(instance.n_types), 200)
    values = beliefs.values(points)
    assert (values >= (points @ fixed.T).max(axis=1) - 1e-9).all()
    assert (values <= points @ fixed.max(axis=0) + 1e-9).all()
    assert beliefs.values(instance.prior) == pytest.approx(found.value, abs=1e-5)
    start = int(found.policy.recommend(np.zeros((instance.n_categories, 4), np.int64)))
    assert beliefs.first(instance.prior) == start
    for x, corner in enumerate(np.eye(instance.n_types)):
        assert fixed[beliefs.first(corner), x] == fixed[:, x].max()


def test_the_belief_map_uses_allowed_categories_only():
    found = dp.plan(magazine(), gap=0.01, allowed=[0, 2])
    assert set(belief_map(found, max_nodes=50).categories.tolist()) <= {0, 2}
    assert "sport" not in _texts(found.plot())


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_instance_is_plotted(plans, name, tmp_path):
    plans[name].plot(tmp_path / "plan.png")
    data = (tmp_path / "plan.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("PNG", b"\x89PNG"), ("pdf", b"%PDF")])
def test_files_are_identical_in_every_run(plans, ending, start, tmp_path):
    path = tmp_path / f"plan.{ending}"
    path.write_text("old")
    drawn = []
    for _ in range(2):
        plans["blog"].plot(path)
        drawn.append(path.read_bytes())
    assert drawn[0].startswith(start)
    assert len(drawn[0]) > 8_000
    assert drawn[0] == drawn[1]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["plan.jpg", "plan", "plan.svg.txt"])
def test_other_suffixes_are_refused(plans, name, tmp_path):
    with pytest.raises(dp.InputError, match=r"expected one of \.svg, \.png, \.pdf\.$"):
        plans["blog"].plot(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_raises_a_clear_error(plans, tmp_path):
    with pytest.raises(dp.InputError, match="Cannot write"):
        plans["blog"].plot(tmp_path / "nowhere" / "plan.svg")


def test_the_title_has_the_policy_and_the_bounds(plans):
    texts = _texts(plans["blog"].plot())
    assert "Plan: sports × 6, then economics" in texts
    assert "expected clicks per user: 0.65029 (optimal)" in texts
    many = plans["many"]
    bounds = f"expected clicks per user: at least {many.lower:.4f} (optimum: at most {many.upper:.4f})"
    assert bounds in _texts(many.plot())


@pytest.mark.slow
def test_long_and_odd_names_fit(tmp_path):
    odd = magazine()
    categories, types = [LONG + "1", LONG + "$2_$", "_\n3"], ["W" * 80, "_y $x$", LONG]
    instance = dp.Instance(odd.prior, odd.click, odd.depart, categories=categories, types=types)
    found = dp.plan(instance, gap=0.05)
    figure = found.plot()
    assert max(len(text) for text in _texts(figure)) < 130
    found.plot(tmp_path / "plan.svg")
    first = dp.Instance([0.4, 0.6], blog().click, categories=[LONG + "1", LONG + "2"], types=["$", LONG])
    dp.plan(first).plot(tmp_path / "blog.pdf")


def test_degenerate_instances_are_plotted(tmp_path):
    never = dp.Instance([0.2, 0.3, 0.5], np.zeros((2, 3)), depart=0.5)
    certain = dp.Instance([0.0, 1.0], [[0.5, 0.28], [0.4, 0.39]], depart=0.6)
    pair = dp.Instance([0.5, 0.5], np.zeros((2, 2)), depart=1.0)
    for instance in (never, certain, pair):
        dp.plan(instance).plot(tmp_path / "plan.png")
        assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_names_are_shortened_in_the_middle():
    assert shorten("news", 1.0, 9) == "news"
    short = shorten(LONG + "17", 1.0, 9)
    assert short.startswith("a cat")
    assert short.endswith("17")
    assert text_width(short, 9) <= 1.0
    assert shorten("long name", 0.0, 9) == "l…"


def test_colours_depend_on_the_index_or_on_the_plotted_categories():
    assert CategoryStyle(blog(), [1]).colours[0] != CategoryStyle(blog(), [1]).colours[1]
    colours = CategoryStyle(_many(), [3, 12, 19]).colours
    assert len(colours) == 20
    assert len({colours[a] for a in (3, 12, 19)}) == 3


def test_shares_are_formatted_as_percentages():
    assert percent(1.0) == "100%"
    assert percent(0.0999) == "10%"
    assert percent(0.0) == "< 0.1%"


def test_planning_does_not_import_matplotlib():
    code = "import sys, departing.planning.plan; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
