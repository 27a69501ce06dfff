"""Descriptions of types mention only what the data determine."""

import numpy as np

import departing as dp
from departing.fitting.likelihood import Parameters
from departing.fitting.type_description import describe_types

SITE = dp.Instance([0.7, 0.3], [[0.9, 0.2], [0.3, 0.8]], 0.3, categories=["sports", "economics"])


def errors(click, depart):
    shape = SITE.click.shape
    return Parameters(np.zeros(2), np.full(shape, click), np.full(shape, depart), np.zeros(shape))


def test_unknown_probabilities_are_not_mentioned():
    assert describe_types(SITE, errors(0.01, 0.01)) == describe_types(SITE)
    assert describe_types(SITE)[1] == "30% of users: love economics, leave after sports"
    assert describe_types(SITE, errors(0.3, 0.3))[0] == "70% of users: too little data about their clicks"
    assert describe_types(SITE, errors(0.01, 0.9))[1] == "30% of users: love economics"


def test_a_category_without_data_is_neither_loved_nor_left():
    log = dp.sample_log(SITE, users=3000, seed=1)
    counts = np.zeros((len(log.histories), 3, 4), np.int64)
    counts[:, 1:] = log.histories.counts
    histories = dp.Histories(counts, log.histories.multiplicity, categories=["nothing", *SITE.categories])
    fit = dp.fit(histories, types=2)
    assert [text.split(": ")[1] for text in fit.describe_types()] == [
        "love sports, leave after economics",
        "love economics, leave after sports",
    ]
