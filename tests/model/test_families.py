import numpy as np
import pytest

import departing as dp


def test_uniform_draws_click_then_depart_then_prior():
    rng = np.random.default_rng(4001)
    click, depart, prior = rng.uniform(0.1, 0.9, (5, 5)), rng.uniform(0.2, 0.9, (5, 5)), rng.dirichlet(np.ones(5))
    assert dp.random_instance("uniform", 5, 5, seed=4001) == dp.Instance(prior, click, depart)


def test_every_specialist_has_a_favourite_of_its_own():
    for seed in range(20):
        click = dp.random_instance("specialists", 3, 5, seed=seed).click
        assert sorted(click.argmax(axis=0)) == [0, 1, 2]
        assert click.max(axis=0).min() >= 0.7
        assert np.sort(click, axis=0)[-2].max() <= 0.55


def test_sticky_users_stay_long():
    assert (1 / dp.random_instance("sticky", 4, 4).departure_probabilities).min() > 8


@pytest.mark.parametrize("seed", range(30))
def test_structures_are_those_of_the_paper(seed):
    (ax, ay), (bx, by) = dp.random_instance("row", seed=seed).click
    assert ax >= max(ay, bx, by)
    assert ay >= by
    (ax, ay), (bx, by) = dp.random_instance("column", seed=seed).click
    assert ax >= bx >= by > ay
    (ax, ay), (bx, by) = dp.random_instance("diagonal", seed=seed).click
    assert ax >= by > max(ay, bx)
    assert (dp.random_instance("row", seed=seed).depart == 1).all()


def test_depart_can_be_given_and_seeds_differ():
    assert (dp.random_instance("uniform", 2, 3, seed=1, depart=0.3).depart == 0.3).all()
    assert dp.random_instance("uniform", seed=1) != dp.random_instance("uniform", seed=2)
    assert dp.random_instance("uniform", seed=1) == dp.random_instance("uniform", seed=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"family": "odd"}, "family is 'odd'; expected one of uniform, specialists"),
        ({"types": 0}, "types is 0; expected an integer ≥ 1"),
        ({"categories": 2.5}, "categories is 2.5"),
        ({"seed": -1}, "seed is -1; expected an integer ≥ 0"),
        ({"family": "row", "types": 3}, "is for 2 types and 2 categories, not 3 and 2"),
        ({"family": "specialists", "types": 3, "categories": 2}, "at least one for each of 3 types"),
    ],
)
def test_invalid_arguments_raise_a_clear_error(arguments, sentence):
    with pytest.raises(dp.InputError, match=sentence):
        dp.random_instance(**arguments)
