"""Plans for segments: each against a plan of its own, certificates, shared policies, and all extensions together."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import departing as dp
from departing.model.examples import magazine, shop
from departing.policy.library import describe
from departing.policy.protocol import policy_in_segment


def site(seed=0, segments=4, types=3, categories=3, depart=None, **fields):
    rng = np.random.default_rng(seed)
    names = [f"country {s}" for s in range(segments)]
    click = rng.uniform(0.1, 0.9, (categories, types))
    departure = rng.uniform(0.2, 0.9, (categories, types)) if depart is None else depart
    groups = dp.Segments(names, rng.dirichlet(np.ones(segments)), rng.dirichlet(np.ones(types), segments))
    return dp.Instance(None, click, departure, segments=groups, **fields)


EXTENSIONS = [
    {},
    {"depart": 1.0},
    {"horizon": 6},
    {"reward": [5.0, 1.0, 20.0], "unit": "euro"},
    {"reward": [5.0, 1.0, 20.0], "unit": "euro", "horizon": 6},
    {"reward": [5.0, 1.0, 20.0], "depart": 1.0},
    {"depart": 1.0, "horizon": 5},
]


@pytest.mark.parametrize("fields", EXTENSIONS)
@pytest.mark.parametrize("seed", [1])
def test_every_segment_has_the_bounds_of_its_own_plan(seed, fields):
    instance = site(seed, **fields)
    plan = dp.plan(instance)
    assert list(plan.by_segment) == list(instance.segments.names)
    assert plan.verify()
    for name, each in {**plan.by_segment, "elsewhere": plan.common}.items():
        alone = dp.plan(instance.in_segment(name))
        assert each.gap <= plan.target_gap
        assert each.lower <= alone.upper
        assert alone.lower <= each.upper
        assert each.verify()
        policy = policy_in_segment(plan.policy, name)
        assert policy == each.policy
        value = dp.evaluate(instance.in_segment(name), policy)
        assert value.upper >= each.lower - 1e-12
        assert value.lower <= each.upper + 1e-12
    shares = instance.segments.share
    assert plan.lower == pytest.approx(shares @ [each.lower for each in plan.by_segment.values()], rel=1e-12)
    assert plan.lower <= plan.upper <= plan.lower + plan.target_gap * (1 + 1e-6)
    assert plan.value_under(instance) == pytest.approx(plan.value, abs=2 * plan.target_gap)


def test_the_value_under_other_instances_is_that_of_the_policy():
    own = dp.Segments(["m", "d"], [0.5, 0.5], [[0.9, 0.1], [0.3, 0.7]])
    instance = dp.Instance(None, [[0.8, 0.2], [0.2, 0.8]], [[0.3, 0.5], [0.6, 0.3]], segments=own)
    plain = instance.replace(segments=None)
    segmented = [
        instance.replace(segments=dp.Segments(names, share, prior))
        for names, share, prior in [
            (["m", "d"], [0.95, 0.05], own.prior),
            (["x", "d"], own.share, own.prior),
            (["m", "d", "e"], [0.2, 0.2, 0.6], [*own.prior, [0.0, 1.0]]),
        ]
    ]
    for each in (instance, plain, plain.replace(horizon=4)):
        plan = dp.plan(each)
        for other in (*segmented, plain, plain.replace(horizon=2), plain.replace(reward=[1, 5])):
            assert plan.value_under(other) == pytest.approx(dp.evaluate(other, plan.policy).value, rel=1e-5)
        with pytest.raises(dp.InputError, match="instance has 1 category; expected 2, as in the instance of"):
            plan.value_under(dp.Instance([1.0], [[0.5]]))


def test_the_policies_of_segments_share_their_vectors():
    plan = dp.plan(site(2))
    assert plan.method == "search"
    first, *rest = (each.policy for each in plan.by_segment.values())
    assert rest
    for policy in rest:
        assert policy.vectors is first.vectors
        assert policy.categories is first.categories
    with pytest.raises(ValueError, match="read-only"):
        first.vectors[0] = 0


def test_one_segment_is_no_segment():
    plain = magazine()
    one = plain.replace(segments=dp.Segments(["all"], [1.0], [plain.prior]))
    plan = dp.plan(one)
    alone = dp.plan(plain)
    assert plan.lower <= alone.upper
    assert alone.lower <= plan.upper
    assert plan.by_segment["all"].value == pytest.approx(alone.value, abs=2e-6)
    start = np.zeros((3, 4), int)
    assert (
        plan.policy.recommend(start)
        == plan.policy.in_segment("all").recommend(start)
        == alone.policy.recommend(start)
    )


def test_segments_of_known_types_reach_the_value_of_known_types():
    plain = magazine()
    instance = plain.replace(segments=dp.Segments(plain.types, plain.prior, np.eye(3)), prior=None)
    plan = dp.plan(instance)
    for x, each in enumerate(plan.by_segment.values()):
        assert each.value == pytest.approx(plain.fixed_values[:, x].max(), abs=1e-6)
    assert plan.verify()


def test_segments_never_lose_value():
    for seed in range(3):
        instance = site(seed)
        assert dp.plan(instance).upper >= dp.plan(instance.in_segment(None)).lower


def test_the_policy_is_saved_and_loaded(tmp_path):
    for fields in EXTENSIONS:
        instance = site(1, **fields)
        plan = dp.plan(instance)
        plan.save(tmp_path / "plan.json")
        loaded = dp.load_policy(tmp_path / "plan.json")
        for name in (*instance.segments.names, "unknown", None):
            own, saved = (policy_in_segment(each, name) for each in (plan.policy, loaded))
            counts = np.random.default_rng(0).integers(0, 3, (50, 3, 4))
            counts[..., 2:] = 0
            np.testing.assert_array_equal(own.recommend(counts), saved.recommend(counts))
            assert getattr(own, "upper", None) == getattr(saved, "upper", None)


def test_a_false_claim_about_one_segment_is_found():
    plan = dp.plan(site(1))
    name, each = next(iter(plan.by_segment.items()))
    object.__setattr__(each, "upper", each.lower * 0.999)
    assert not plan.verify()
    plan = dp.plan(site(1))
    plan.by_segment[name].certificate.nodes.upper[0] *= 0.99
    assert not plan.verify()


def test_methods_agree_with_sure_departure():
    instance = site(5, depart=1.0)
    walks, search = (dp.plan(instance, method=method) for method in ("lattice", "search"))
    for name in instance.segments.names:
        assert walks.by_segment[name].lower <= search.by_segment[name].upper
        assert search.by_segment[name].lower <= walks.by_segment[name].upper
    assert isinstance(walks.policy, dp.BySegment)


def test_a_segment_without_users_and_with_a_type_of_its_own_is_planned():
    groups = dp.Segments(["a", "b"], [1.0, 0.0], [[0.5, 0.5, 0.0], [0.2, 0.2, 0.6]])
    instance = magazine().replace(prior=None, segments=groups)
    plan = dp.plan(instance)
    alone = dp.plan(instance.in_segment("b"))
    assert plan.by_segment["b"].value == pytest.approx(alone.value, abs=2e-6)
    assert plan.verify()


def test_a_uniformly_best_category_serves_all_segments():
    instance = site(1).replace(click=[[0.9] * 3, [0.1] * 3, [0.1] * 3], depart=0.5)
    plan = dp.plan(instance)
    assert plan.method == "closed-form"
    assert plan.policy.in_segment("country 1") == dp.Fixed(0)
    assert plan.verify()


def test_texts_tables_and_plots_show_the_segments(tmp_path):
    instance = site(2, reward=[5.0, 1.0, 20.0], unit="euro")
    plan = dp.plan(instance, gap=1e-2)
    assert "country 2" in plan.summary()
    assert "euro" in plan.summary()
    frame = plan.to_frame()
    assert list(frame["segment"]) == [*instance.segments.names]
    assert (frame["lower"] <= frame["upper"]).all()
    plan.plot(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").stat().st_size > 1000
    assert plan.by_segment["country 1"].plot()
    assert all(each.loss.upper >= 0 for each in plan.baselines())
    assert plan.sensitivity(0.05).of("click")


def test_few_nodes_and_little_time_keep_valid_bounds():
    instance = site(3, segments=10, types=6, categories=8)
    short, longer = dp.plan(instance, gap=1e-9, seconds=0.3), dp.plan(instance, gap=1e-2)
    for name in instance.segments.names:
        assert short.by_segment[name].lower <= longer.by_segment[name].upper
        assert longer.by_segment[name].lower <= short.by_segment[name].upper
    assert short.verify()


def test_the_legend_of_the_segments_covers_no_text():
    figure = dp.plan(shop(), gap=0.1).plot()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,), renderer = figure.axes, canvas.get_renderer()
    legend = axes.get_legend().get_window_extent(renderer)
    for text in (axes.xaxis.label, *axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()):
        assert not legend.overlaps(text.get_window_extent(renderer))
    assert legend.y1 <= figure.bbox.height


def test_sensitivity_reports_the_first_category_of_every_segment():
    """The common prior is far from the decision boundary, that of the small segment is close to it."""
    segments = dp.Segments(["close", "clear"], [0.2, 0.8], [[0.54, 0.46], [0.0, 1.0]])
    instance = dp.Instance(None, [[0.5, 0.2], [0.3, 0.6]], 0.5, segments=segments)
    plan = dp.plan(instance)
    result = plan.sensitivity(0.2)
    assert result.by_segment.keys() == plan.by_segment.keys()
    assert {each.first[0] for each in result.perturbations} == {result.first[0]}
    changed = [result.changed(each) for each in result.perturbations]
    assert any(changed)
    for each, new in zip(result.perturbations, changed, strict=True):
        starts = {name: first[0] for name, first in each.by_segment.items()}
        assert starts == {name: first[0] for name, first in result.by_segment.items()} | new
    plain = dp.plan(instance.in_segment("close")).sensitivity(0.2)
    for each in plain.perturbations:
        assert plain.changed(each) == ({} if each.first[0] == plain.first[0] else {None: each.first[0]})


def test_a_policy_that_depends_on_segments_is_described_like_its_plan():
    users = shop()
    plan = dp.plan(users, gap=1e-2)
    starts = "offers in de/mobile (40% of users), fashion in fr/* (35%), electronics in de/desktop (25%)"
    assert plan.describe() == f"start with {starts}, then adapt to the user's clicks"
    assert describe(plan.policy, users) == plan.policy.describe(users.categories) == plan.describe()
    parts = {name: each.policy for name, each in plan.by_segment.items()}
    policy = dp.BySegment(parts, default=plan.policy.in_segment(None))
    assert describe(policy, users) == plan.describe()
    start = (
        "start with fashion in fr/*, offers in de/mobile, electronics in de/desktop, then adapt to the user's clicks"
    )
    assert policy.describe(users.categories).startswith(f"{start}; in other segments: start with fashion, then adapt")
    # Without segments, all users get the policy for unknown ones.
    assert describe(plan.policy, users.replace(segments=None)).startswith("start with fashion, then adapt")


def test_fixed_policies_of_segments_are_described_as_fixed():
    users = shop()
    policy = dp.BySegment({"de/mobile": dp.Fixed(1), "fr/mobile": dp.Fixed("fashion")}, default=dp.Fixed(0))
    assert describe(policy, users) == "always fashion in */mobile (60% of users), offers in */desktop (40%)"
    assert policy.describe(users.categories) == "always fashion; in other segments: always offers"
