"""Random instances, counts and policies for hypothesis, the ends of every range included."""

import numpy as np
from hypothesis import strategies as st

import departing as dp
from departing.model.errors import InputError

PROBABILITIES = st.one_of(
    st.floats(0.02, 0.98),
    st.sampled_from([0.0, 1.0, 0.5, 1e-9, 1 - 1e-9, 1e-300, 2.0**-53, 1 - 2.0**-53]),
)
ORDINARY = st.floats(0.1, 0.9)


@st.composite
def instances(draw, probabilities=PROBABILITIES, most=4, depart=None, depart_on_click=True):
    """An instance of up to `most` types and categories; entries that would never depart are moved inside."""
    n_types, n_categories = draw(st.integers(1, most)), draw(st.integers(1, most))
    weights = np.array([draw(st.floats(0.05, 1)) for _ in range(n_types)])
    matrix = lambda source: np.array([[draw(source) for _ in range(n_types)] for _ in range(n_categories)])  # noqa: E731
    click = matrix(probabilities)
    leave = matrix(probabilities) if depart is None else np.full(click.shape, depart)
    last = matrix(probabilities) if depart_on_click and draw(st.booleans()) else np.zeros_like(click)
    stuck = (1 - click) * leave + click * last < 1e-12
    click, leave = np.where(stuck, 0.5, click), np.where(stuck, 0.5, leave)
    return dp.Instance(weights / weights.sum(), click, leave, last)


@st.composite
def schedules(draw, n_categories):
    """A Fixed, Threshold or Walk."""
    category = st.integers(0, n_categories - 1)
    kind = draw(st.sampled_from(["fixed", "threshold", "walk"]))
    if kind == "fixed":
        return dp.Fixed(draw(category))
    if kind == "threshold":
        return dp.Threshold(first=draw(category), steps=draw(st.integers(0, 30)), then=draw(category))
    return dp.Walk(draw(st.lists(category, max_size=12)), then=draw(category))


@st.composite
def counts(draw, n_categories, most=6):
    """Counts of a user who is still here."""
    rows = [[draw(st.integers(0, most)), draw(st.integers(0, most)), 0, 0] for _ in range(n_categories)]
    return np.array(rows)


class Opaque:
    """A policy of which nothing is known but what it recommends."""

    def __init__(self, policy):
        self.policy = policy

    def recommend(self, counts):
        return self.policy.recommend(counts)


__all__ = ["ORDINARY", "PROBABILITIES", "InputError", "Opaque", "counts", "instances", "schedules"]
