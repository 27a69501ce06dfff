"""Sample sizes: agreement with simulated experiments, and their errors."""

import json
from math import ceil, sqrt

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import departing as dp
from departing.abtest.returns import mixture_returns
from departing.abtest.sequence import confidence_sequence
from departing.abtest.welch import ArmMoments, rejection_probability
from departing.model.examples import blog, magazine
from helpers.commands import call, output

EXPERIMENTS = 10_000


def assert_simulated(size, experiments=EXPERIMENTS):
    """The rejection rate of simulated experiments is the power, within 4 standard errors and the approximation."""
    tolerance = 0.01 if min(size.treatment_users, size.control_users) >= 100 else 0.06
    rate = size.simulate(experiments, seed=1)
    assert abs(rate - size.power) < 4 * sqrt(size.power * (1 - size.power) / experiments) + tolerance


@pytest.mark.parametrize("share", [0.5, 0.1, 0.8])
@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
def test_simulated_experiments_reject_with_the_requested_power(share, power):
    site = magazine()
    size = dp.power(site, "greedy", "fixed:news", power=power, share=share)
    assert size.power == pytest.approx(power, abs=0.002)
    assert size.power >= power
    assert_simulated(size)


@pytest.mark.parametrize("seed", range(6))
def test_power_is_right_for_random_instances(seed):
    site = dp.random_instance("uniform", 3, 3, seed=seed, depart=0.2 + 0.1 * seed)
    values = site.fixed_values @ site.prior
    best, worst = int(values.argmax()), int(values.argmin())
    assert_simulated(dp.power(site, dp.Fixed(best), dp.Fixed(worst)))


def test_power_accounts_for_skewness():
    # One user in 2,000 stays very long: skewness above 20, with most users in the other arm.
    site = dp.Instance([0.9995, 0.0005], [[0.3, 0.99], [0.33, 0.99]], [[1.0, 0.5], [1.0, 0.5]])
    size = dp.power(site, "fixed:1", "fixed:0", share=0.2)
    assert size.control.skewness > 20
    assert_simulated(size, 3000)


def test_the_rejection_probability_is_the_significance_if_nothing_differs():
    arm = ArmMoments(1.0, 2.0, 0.0, 500)
    assert rejection_probability(arm, arm, 0.05) == pytest.approx(0.05, abs=1e-4)


def test_without_skewness_the_power_is_that_of_the_noncentral_t_test():
    one, other = ArmMoments(1.5, 2.0, 0.0, 60), ArmMoments(1.0, 2.0, 0.0, 60)
    rng = np.random.default_rng(3)
    drawn = rng.normal(0, sqrt(2), (2, 20_000, 60))
    p = stats.ttest_ind(drawn[0] + 1.5, drawn[1] + 1.0, axis=1, equal_var=False).pvalue
    assert abs((p < 0.05).mean() - rejection_probability(one, other, 0.05)) < 4 * sqrt(0.25 / 20_000)


def test_the_sample_size_is_the_smallest_and_the_detectable_effect_is_the_difference():
    size = dp.power(magazine(), "greedy", "fixed:news")
    assert size.power_at(size.users - 2) < 0.8 <= size.power_at(size.users)
    assert size.detectable == pytest.approx(size.difference, rel=2e-3)
    assert size.treatment_users == size.control_users == size.users_per_arm == size.users // 2
    given = dp.power(magazine(), "greedy", "fixed:news", users=size.users)
    assert (given.users, given.power) == (size.users, size.power)
    larger = dp.power(magazine(), "greedy", "fixed:news", users=4 * size.users)
    assert larger.detectable == pytest.approx(size.detectable / 2, rel=0.02)


def test_the_order_of_the_arms_and_the_sign_of_the_difference():
    one, other = dp.power(blog(), "fixed:0", "fixed:1"), dp.power(blog(), "fixed:1", "fixed:0")
    assert one.difference == -other.difference < 0
    assert one.users == other.users


def test_sequential_users_find_the_difference_with_the_requested_power():
    size = dp.power(magazine(), "greedy", "fixed:news")
    n, rng, found, runs = size.sequential_users, np.random.default_rng(5), 0, 400
    for _ in range(runs):
        treated = rng.random(n) < 0.5
        clicks = np.empty(n)
        for arm, mask in ((size.treatment, treated), (size.control, ~treated)):
            clicks[mask] = rng.choice(len(arm.probabilities), mask.sum(), p=arm.probabilities)
        sequence = confidence_sequence(clicks, treated, np.array([n]), n, 0.05)
        found += sequence.final[0] > 0
    assert abs(found / runs - 0.8) < 4 * sqrt(0.16 / runs)


def test_moments_are_those_of_simulated_users():
    site = magazine()
    arm = dp.power(site, "greedy", "fixed:news").treatment
    run = dp.simulate(site, "greedy", users=10**9, seed=1)
    probabilities = run.returns_users / run.users
    assert arm.mean == pytest.approx(run.mean, rel=1e-3)
    assert arm.variance == pytest.approx(probabilities @ (run.returns - run.mean) ** 2, rel=2e-3)
    assert arm.third_moment == pytest.approx(probabilities @ (run.returns - run.mean) ** 3, rel=1e-2)


@pytest.fixture(scope="module")
def fitted():
    return dp.fit(dp.sample_log(magazine(), users=20_000, seed=1).histories, types=[3])


def test_against_the_log_of_a_fit(fitted, tmp_path):
    size = dp.power(fitted, "fixed:news")
    assert size.control.name == "policy of the log"
    assert "logged frequencies" in size.notes[0]
    # The log showed random categories to users of the same instance.
    histories = fitted.histories
    observed = histories.multiplicity @ histories.clicks / histories.users
    assert size.control.mean == pytest.approx(observed, rel=0.05)
    assert not any("adapts" in note for note in size.notes)
    fitted.save(tmp_path / "found.toml")
    assert dp.Instance.load(tmp_path / "found.toml") == fitted.instance
    assert dp.power(tmp_path / "found.toml", "fixed:news").users == size.users


def test_a_log_that_adapts_to_its_users_is_noted(fitted, tmp_path):
    fitted.save(tmp_path / "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    document["log"]["clicks_per_user"] = 9.5
    (tmp_path / "found.json").write_text(json.dumps(document))
    assert "adapts to its users" in dp.power(tmp_path / "found.json", "fixed:news").notes[1]


def test_a_random_category_at_every_step_by_its_definition():
    site = dp.random_instance("uniform", 2, 3, seed=3, depart=0.4).replace(depart_on_click=0.05)
    shown = np.array([0.2, 0.5, 0.3])
    rng, users = np.random.default_rng(1), 40_000
    types = rng.choice(2, users, p=site.prior)
    active, clicks = np.ones(users, bool), np.zeros(users)
    while active.any():
        x = types[active]
        a = rng.choice(3, len(x), p=shown)
        clicked = rng.random(len(x)) < site.click[a, x]
        leaves = rng.random(len(x)) < np.where(clicked, site.depart_on_click[a, x], site.depart[a, x])
        clicks[active] += clicked
        active[active] = ~leaves
    exact = mixture_returns("log", site, shown)
    assert abs(clicks.mean() - exact.mean) < 4 * sqrt(exact.variance / users)
    assert clicks.var() == pytest.approx(exact.variance, rel=0.1)


def test_presentation(tmp_path):
    size = dp.power(magazine(), "greedy", "fixed:news", share=0.25)
    assert "users in the treatment arm and" in size.describe()
    assert "continuous monitoring" in size.summary()
    assert list(size.to_frame()["arm"]) == ["treatment", "control"]
    assert "<table" in size._repr_html_()
    assert isinstance(size.plot(tmp_path / "size.png"), Figure)
    assert (tmp_path / "size.png").stat().st_size > 1000
    assert size.treatment_users == ceil(size.users * 0.25 - 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "fixed:news", "against": "fixed:news"}, "no number of users suffices"),
        ({"policy": "greedy", "against": "log"}, "an instance has no log"),
        ({"policy": "greedy", "against": "fixed:film"}, "no category 'film'"),
        ({"policy": "greedi", "against": "fixed:news"}, "no policy 'greedi'"),
        ({"policy": "greedy", "against": "fixed:news", "power": 1.5}, "power is 1.5"),
        ({"policy": "greedy", "against": "fixed:news", "power": 0.01}, "more than the significance"),
        ({"policy": "greedy", "against": "fixed:news", "significance": 0}, "significance is 0"),
        ({"policy": "greedy", "against": "fixed:news", "share": 1}, "share is 1"),
        ({"policy": "greedy", "against": "fixed:news", "users": 2}, "users is 2"),
        ({"policy": "greedy", "against": "fixed:news", "max_nodes": 0}, "max_nodes is 0"),
        ({"policy": "greedy", "against": "fixed:news", "max_nodes": 2}, "raise `max_nodes`"),
    ],
)
def test_errors(options, message):
    policy = options.pop("policy")
    with pytest.raises(dp.InputError, match=message):
        dp.power(magazine(), policy, **options)


@pytest.mark.slow
def test_a_decision_adds_the_uncertainty_of_the_difference(fitted):
    decision = dp.plan(fitted)
    size = dp.power(decision, against="fixed:news")
    assert size.users == dp.power(fitted, decision, "fixed:news").users
    assert size.users == dp.power(decision, decision.policy, "fixed:news").users
    gain = next(each for each in decision.gains if each.name == "always news")
    assert f"{gain.lower:.3g} to {gain.upper:.3g} clicks per user" in size.notes[-1]
    lower = int(size.notes[-1].rpartition("needs ")[2].split(" users")[0].replace(",", ""))
    assert lower == pytest.approx(size.users_per_arm * (size.difference / gain.lower) ** 2, rel=0.05)


def test_errors_of_sources(tmp_path):
    with pytest.raises(dp.InputError, match="policy is missing"):
        dp.power(magazine(), against="greedy")
    with pytest.raises(dp.InputError, match="expected a Fit"):
        dp.power(3, "greedy")
    magazine().save(tmp_path / "old.toml")
    with pytest.raises(dp.InputError, match=r"has no table 'log'.*departing fit LOG -o"):
        dp.power(tmp_path / "old.toml", "greedy")
    for log in (
        "shown = [0.5, 0.5]\nusers = 3",
        "shown = [0.5, 0.1, 0.1]\nusers = 3",
        "users = 3",
        "shown = 3\nusers=1",
    ):
        text = (tmp_path / "old.toml").read_text()
        (tmp_path / "bad.toml").write_text(f"{text}\n[log]\n{log}\n")
        with pytest.raises(dp.InputError, match="log"):
            dp.power(tmp_path / "bad.toml", "greedy")


def test_small_differences_are_not_printed_as_zero():
    site = dp.Instance([1.0], [[0.5], [0.50002]], depart=1.0)
    size = dp.power(site, "fixed:1", against="fixed:0")
    assert "a difference of 8e-05 clicks per user" in size.describe()
    assert ": 8e-05 clicks per user." in size.summary()


def test_tiny_differences_need_many_users_of_a_sequence():
    site = dp.Instance([0.5, 0.5], [[0.95, 0.05], [0.9500007, 0.05]], depart=1.0)
    size = dp.power(site, "fixed:1", against="fixed:0", users=1000)
    assert 1e11 < size.sequential_users < 1e13
    assert "plan " in size.summary()


def test_rewards_are_refused_or_ignored(tmp_path):
    rewarded, plain = magazine().replace(reward=[1.0, 5.0, 2.0], unit="euro"), magazine()
    with pytest.raises(dp.InputError, match=r"have rewards in euro, .* set `clicks_only` to compare clicks"):
        dp.power(rewarded, "fixed:sport", "fixed:news")
    size = dp.power(rewarded, "fixed:sport", "fixed:news", clicks_only=True)
    assert size.users == dp.power(plain, "fixed:sport", "fixed:news").users
    assert "Clicks are compared; rewards are ignored." in size.notes
    policy = dp.plan(rewarded).policy  # the one that maximises rewards
    tested = dp.power(rewarded, policy, "fixed:news", clicks_only=True)
    assert tested.treatment.mean == pytest.approx(dp.evaluate(plain, policy).value)
    rewarded.save(tmp_path / "site.toml")
    done = call("power", tmp_path / "site.toml", "fixed:sport", "--against", "fixed:news")
    assert done.exit_code == 2
    assert "set --clicks-only to compare clicks." in done.stderr
    printed = output("power", "shop", "fixed:offers", "--against", "fixed:fashion", "--clicks-only")
    assert "rewards are ignored" in printed
    assert "magazine or shop" in " ".join(output("power", "--help").replace("│", " ").split())
