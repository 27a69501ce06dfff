"""Test whether segments tell anything: level, power, columns and words."""

import numpy as np
import pytest

import departing as dp
from departing.fitting.segment_test import column_values
from departing.model.segments import Segments

SITE = dp.Instance([0.5, 0.5], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.5], [0.6, 0.3]])


def labelled(labels, seed, prior=(0.5, 0.5), names=None):
    """Histories of users of one site with these segments, which tell nothing."""
    data = dp.sample_log(SITE.replace(prior=prior), users=len(labels), seed=seed, days=60).histories.confirmed
    counts = np.repeat(data.counts, data.multiplicity, axis=0)
    own = np.random.default_rng(seed).permutation(labels)[: len(counts)]
    names = names or [f"s{s}" for s in range(int(max(labels)) + 1)]
    return dp.Histories(counts, segment=own, segments=names).distinct


@pytest.mark.parametrize("sizes", [[400, 400], [10] * 80])
def test_p_values_are_uniform_if_segments_tell_nothing(sizes):
    from scipy import stats

    labels = np.repeat(np.arange(len(sizes)), sizes)
    p_values = [dp.fit(labelled(labels, seed), types=2, n_init=2).segment_test.p_value for seed in range(40)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    assert np.mean(np.array(p_values) < 0.01) <= 0.1


def shop(device_tells, seed, users=4000):
    names = ["de/mobile", "de/desktop", "fr/mobile", "fr/desktop"]
    shares = [0.8, 0.6 if device_tells else 0.8, 0.4, 0.2 if device_tells else 0.4]
    segments = Segments(names, [0.3, 0.3, 0.2, 0.2], [[q, 1 - q] for q in shares], ["country", "device"])
    return dp.sample_log(SITE.replace(prior=None, segments=segments), users=users, seed=seed, days=60).histories


def test_columns_that_tell_something_are_named():
    both = dp.fit(shop(True, 1), types=2)
    assert both.segment_test.p_value < 1e-6
    assert [column.column for column in both.segment_test.columns] == ["country", "device"]
    assert all(column.informative for column in both.segment_test.columns)
    one = dp.fit(shop(False, 2), types=2).segment_test
    country, device = one.columns
    assert country.informative
    assert not device.informative
    assert country.gain > 10 * device.gain
    assert "device shows no information about types" in one.summary()


def test_gain_is_that_of_new_users():
    """The expected gain agrees with the one on other users of the same site."""
    fit, new = dp.fit(shop(True, 3), types=2), shop(True, 4, users=20_000)
    total = 0.0
    for name in new.segments:
        part = new.in_segment(name).confirmed
        free = fit.likelihood.depart_categories, fit.likelihood.depart_on_click_categories
        like = fit.likelihood.from_counts(part.counts, part.multiplicity, 2, *free)
        own, common = fit.instance.in_segment(name), fit.instance.in_segment(None)
        total += like.log_likelihood(like.to_logits(own)) - like.log_likelihood(like.to_logits(common))
    assert total / new.confirmed.users == pytest.approx(fit.segment_test.gain, rel=0.25)


def test_summary_states_the_effect():
    text = dp.fit(shop(True, 1), types=2).summary()
    assert "Segments tell something about types (p" in text
    assert "nats per user" in text
    assert "4 segments of country and device: priors are shrunk as by" in text


def test_one_type_or_segment_is_not_tested():
    data = shop(True, 1, users=500)
    assert dp.fit(data, types=1).segment_test is None
    assert dp.fit(data.in_segment("de/mobile"), types=2).segment_test is None


def test_values_of_columns():
    values = column_values(("a/x", "a/y", "b/x"), ("one", "two"))
    own, others = values["one"]
    assert own.tolist() == [0, 0, 1]
    assert others.tolist() == [0, 1, 0]
    assert column_values(("a", "b"), ("one",)) == {}


def test_sampled_logs_of_segmented_sites_are_recovered():
    """Logs of an instance with segments: the z-scores of all priors are bounded over seeds."""
    scores = []
    for seed in range(5):
        data = shop(True, 30 + seed)
        fit = dp.fit(data, types=2)
        shares = {"de/mobile": 0.8, "de/desktop": 0.6, "fr/mobile": 0.4, "fr/desktop": 0.2}
        true = np.array([shares[name] for name in data.segments])
        type_ = int(np.abs(fit.instance.click - SITE.click[:, [0]]).sum(axis=0).argmin())
        prior = fit.instance.segments.prior[:, type_]
        scores.append((np.log(prior / (1 - prior)) - np.log(true / (1 - true))) / fit.segments.logit_stderr[:, type_])
    assert np.abs(scores).max() < 4
    assert 0.5 < np.std(scores) < 1.7


def test_a_column_that_the_others_determine_adds_nothing():
    names = ["de/mobile", "fr/desktop"]
    segments = Segments(names, [0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]], ["country", "device"])
    histories = dp.sample_log(SITE.replace(prior=None, segments=segments), users=1000, seed=1).histories
    columns = dp.fit(histories, types=2).segment_test.columns
    assert [(each.p_value < 1e-6, each.added_p_value) for each in columns] == [(True, 1.0)] * 2
