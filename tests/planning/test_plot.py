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
from departing.planning.plot.layout import Brush, percent
from departing.planning.plot.plan_plot import draw
from departing.planning.plot.policy_tree import first_steps
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
        "settles": dp.random_instance("uniform", 2, 12, seed=5),
        "magazine": magazine(),
        "five types": dp.random_instance("uniform", 5, 5, seed=3),
    }
    found = {name: dp.plan(instance) for name, instance in instances.items()}
    found["many"] = dp.plan(_many(), gap=0.5, seconds=2)
    return found


NAMES = ["one type", "blog", "walk", "specialists", "settles", "magazine", "five types", "many"]


@pytest.mark.parametrize("name", NAMES)
def test_the_shares_of_every_column_sum_to_the_survival(plans, name):
    found = plans[name]
    survival = dp.evaluate(found.instance, found.policy, tolerance=1e-4).distribution.survival
    for column in first_steps(found):
        parts = sum(node.share for node in column.nodes) + column.hidden + column.ended
        assert parts == pytest.approx(column.here, abs=1e-12)
        assert column.here == pytest.approx(survival[column.step], abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_edges_bring_what_arrives_but_for_what_is_not_drawn(plans, name):
    columns = first_steps(plans[name])
    assert [node.share for node in columns[0].nodes] == [pytest.approx(1.0)]
    assert columns[-1].edges == ()
    for column, after in pairwise(columns):
        arriving = np.zeros(len(after.nodes))
        for edge in column.edges:
            arriving[edge.end] += edge.share
            assert not column.nodes[edge.start].settled
        shares = np.array([node.share for node in after.nodes])
        assert (arriving > 0).all()
        assert (arriving <= shares + 1e-12).all()
        assert (shares - arriving).sum() <= column.hidden + 1e-12


def test_the_blog_is_a_chain_of_two_runs_with_exact_shares(plans):
    first, then = first_steps(plans["blog"])
    assert [(node.category, node.steps, node.settled) for node in first.nodes + then.nodes] == [
        (1, 6, False),
        (0, 0, True),
    ]
    left = Fraction(4, 10) * Fraction(4, 10) ** 6 + Fraction(6, 10) * Fraction(39, 100) ** 6
    assert then.here == then.nodes[0].share == pytest.approx(float(left), rel=1e-12)
    assert [(edge.outcome, edge.note) for edge in first.edges] == [(CLICK, "6 clicks")]
    assert then.step == 6


def test_the_first_two_steps_of_the_magazine_are_exact(plans):
    instance = plans["magazine"].instance
    root, second = first_steps(plans["magazine"])[:2]
    music = instance.category_index("music")
    assert root.nodes[0].category == music
    clicked, stayed = (
        float(instance.prior @ instance.outcome_probabilities[music, outcome]) for outcome in (CLICK, STAY)
    )
    assert [node.share for node in second.nodes] == pytest.approx([clicked, stayed], abs=1e-12)
    assert [(edge.outcome, edge.end) for edge in root.edges] == [(CLICK, 0), (STAY, 1)]
    assert [instance.categories[node.category] for node in second.nodes] == ["music", "news"]


def test_one_category_for_ever_is_one_node(plans):
    (column,) = first_steps(plans["one type"])
    assert column.nodes[0].settled
    assert column.edges == ()


def test_nothing_is_drawn_after_a_settled_node(plans):
    columns = first_steps(plans["settles"])
    assert any(node.settled for column in columns for node in column.nodes)
    assert columns[-1].ended > 0.5


def test_small_nodes_are_left_out_and_columns_stay_short():
    found = dp.plan(magazine(), gap=0.01)
    for column in first_steps(found, 9):
        assert len(column.nodes) <= 8
        assert min(node.share for node in column.nodes) >= 0.01


@pytest.mark.parametrize("name", ["blog", "walk", "specialists", "magazine"])
def test_beliefs_lie_between_one_category_for_ever_and_known_types(plans, name):
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


def test_beliefs_keep_to_allowed_categories():
    found = dp.plan(magazine(), gap=0.01, allowed=[0, 2])
    assert set(belief_map(found, seconds=0.2).categories.tolist()) <= {0, 2}
    assert "sport" not in _texts(draw(found))


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_instance_draws(plans, name, tmp_path):
    plans[name].picture(tmp_path / "plan.png")
    data = (tmp_path / "plan.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("PNG", b"\x89PNG"), ("pdf", b"%PDF")])
def test_files_of_every_ending_are_the_same_every_time(plans, ending, start, tmp_path):
    path = tmp_path / f"plan.{ending}"
    path.write_text("old")
    drawn = []
    for _ in range(2):
        plans["blog"].picture(path)
        drawn.append(path.read_bytes())
    assert drawn[0].startswith(start)
    assert len(drawn[0]) > 8_000
    assert drawn[0] == drawn[1]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["plan.jpg", "plan", "plan.svg.txt"])
def test_other_endings_are_refused(plans, name, tmp_path):
    with pytest.raises(dp.InputError, match=r"allowed endings are \.svg, \.png, \.pdf\.$"):
        plans["blog"].picture(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_a_sentence(plans, tmp_path):
    with pytest.raises(dp.InputError, match="Cannot write"):
        plans["blog"].picture(tmp_path / "nowhere" / "plan.svg")


def test_the_title_tells_the_policy_and_the_bracket(plans):
    texts = _texts(draw(plans["blog"]))
    assert "Plan: sports × 6, then economics" in texts
    assert "expected clicks per user: 0.65029 (best possible)" in texts
    many = plans["many"]
    bracket = f"expected clicks per user: at least {many.lower:.4f} (best possible: at most {many.upper:.4f})"
    assert bracket in _texts(draw(many))


def test_long_and_odd_names_fit(tmp_path):
    odd = magazine()
    categories, types = [LONG + "1", LONG + "$2_$", "_\n3"], ["W" * 80, "_y $x$", LONG]
    instance = dp.Instance(odd.prior, odd.click, odd.depart, categories=categories, types=types)
    found = dp.plan(instance, gap=0.05)
    figure = draw(found)
    assert max(len(text) for text in _texts(figure)) < 130
    found.picture(tmp_path / "plan.svg")
    first = dp.Instance([0.4, 0.6], blog().click, categories=[LONG + "1", LONG + "2"], types=["$", LONG])
    dp.plan(first).picture(tmp_path / "blog.pdf")


def test_instances_at_the_edge_draw(tmp_path):
    never = dp.Instance([0.2, 0.3, 0.5], np.zeros((2, 3)), depart=0.5)
    certain = dp.Instance([0.0, 1.0], [[0.5, 0.28], [0.4, 0.39]], depart=0.6)
    pair = dp.Instance([0.5, 0.5], np.zeros((2, 2)), depart=1.0)
    for instance in (never, certain, pair):
        dp.plan(instance).picture(tmp_path / "plan.png")
        assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_names_are_shortened_in_the_middle():
    assert shorten("news", 1.0, 9) == "news"
    short = shorten(LONG + "17", 1.0, 9)
    assert short.startswith("a cat")
    assert short.endswith("17")
    assert text_width(short, 9) <= 1.0
    assert shorten("long name", 0.0, 9) == "l…"


def test_colours_go_by_index_or_by_what_is_shown():
    assert Brush(blog(), [1]).colours[0] != Brush(blog(), [1]).colours[1]
    colours = Brush(_many(), [3, 12, 19]).colours
    assert len(colours) == 20
    assert len({colours[a] for a in (3, 12, 19)}) == 3


def test_shares_are_written_for_people():
    assert percent(1.0) == "100 %"
    assert percent(0.0999) == "10 %"
    assert percent(0.0) == "< 0.1 %"


def test_planning_does_not_import_matplotlib():
    code = "import sys, departing.planning.plan; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
