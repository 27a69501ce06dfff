"""Forecasts of the steps of a log, summed in families of cells.

A family assigns every step to one group: by step, by the user's previous responses, by previous responses to the same
category, by the previous response, by the arrival of the user, or by the time of the step. A cell is a group and a
category. The sums over cells are all that the tests need; sums of different users add up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from departing.data.log import Episodes
from departing.data.sample import step_evidence
from departing.model.belief import IMPOSSIBLE
from departing.model.counts import Integers
from departing.model.instance import Floats, Instance

RESPONSES = ("click", "depart", "depart_on_click")
# Cells trade resolution against power: early steps, with most of the data, one by one; later ones in wider groups.
STEP_GROUPS = np.array([1, 2, 3, 4, 5, 6, 8, 11, 16, 31])  # first step of each group
COUNT_LABELS = ("0 {}s", "1 {}", "2 {}s", "3 or more {}s")  # groups of previous clicks and no-clicks
PREVIOUS_LABELS = ("at the first step", "after a click", "after a no-click")
TIME_BINS = 32  # of the length of the log; merged to quarters when all steps are known
QUARTERS = 4  # of the steps: halves would miss a change that reverts, more have less power
FORECAST_BINS = 20  # of calibration plots: 5 points wide
MAX_CATEGORIES = 12  # cells for each of the 11 most frequent categories and for all others; bounds time and memory
# Derivatives are averages over steps. A sample of the users suffices, evenly spaced: the error of its averages is far
# below that of a z-score, and derivatives take most of the time.
GRADIENT_USERS = 20_000

FAMILIES = ("step", "counts", "repetition", "previous", "cohort", "calendar")
QUARTER_LABELS = {"cohort": "in cohort {} of {} by arrival", "calendar": "in period {} of {} of the log"}
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)  # of 2^64; its multiples spread evenly, whatever pattern numbers have


@dataclass(frozen=True, eq=False)
class Family:
    """Sums over the cells of one family.

    `groups` describe the groups; `sums[3, G, C, 4]` has for every response, group and category the number of steps,
    successes, expected successes and their variance, and `slopes[3, G, C, P]` the derivatives of expected successes
    by the parameters.
    """

    name: str
    groups: tuple[str, ...]
    sums: Floats
    slopes: Floats


class TrendSums:
    """Sums over users of the scores of linear trends with time; see the kernel `add_trends`.

    `times[3, 4]`, `totals[3, 2]`, `squares[3, 2, 2]` and `products[3, 2, P]` by response; `slopes[2, P]` of
    clicks; `scores[P]`.
    """

    def __init__(self, parameters: int) -> None:
        self.times, self.totals, self.squares = np.zeros((3, 4)), np.zeros((3, 2)), np.zeros((3, 2, 2))
        self.products, self.slopes = np.zeros((3, 2, parameters)), np.zeros((2, parameters))
        self.scores = np.zeros(parameters)


class ForecastSums:
    """Sums of observed and forecast responses over the steps of a log, chunk by chunk.

    Parameters
    ----------
    instances : sequence of Instance
        Model that forecasts all users; or two, for the users of each of the halves by `half_of`.
    users : int
        Number of users to come, which determines the share of them with derivatives.
    with_slopes : bool
        Compute derivatives.
    horizon : int, optional
        Largest number of steps of a user, as the log was read.
    """

    def __init__(
        self, instances: Sequence[Instance], users: int, with_slopes: bool, horizon: int | None = None
    ) -> None:
        self.instances, self.with_slopes, self.horizon = instances, with_slopes, horizon
        instance = instances[0]
        self.stride = max(-(-users // GRADIENT_USERS), 1)
        self.labels = {
            "step": [""] * len(STEP_GROUPS),
            "counts": [f"after {counts}" for counts in _count_labels()],
            "repetition": [f"after {counts} of the same category" for counts in _count_labels()],
            "previous": list(PREVIOUS_LABELS),
            "cohort": [""] * TIME_BINS,
            "calendar": [""] * TIME_BINS,
        }
        self.sizes = [len(self.labels[name]) for name in FAMILIES]
        self.n_groups = min(instance.n_categories, MAX_CATEGORIES)
        self.group_of: Integers | None = None  # group of every category, from the first chunk
        k, m = instance.n_categories, instance.n_types
        cells, parameters = sum(self.sizes) * self.n_groups, 3 * k * m + m - 1
        self.sums = np.zeros((3, cells, 5))
        self.slopes = np.zeros((3, cells, parameters if with_slopes else 0))
        self.bins = np.zeros((3, FORECAST_BINS, 4))
        self.totals = np.zeros((0, 5))
        self.times = {name: np.zeros(TIME_BINS) for name in QUARTER_LABELS}  # steps by bin of time
        self.trends = TrendSums(parameters)
        n_segments = 0 if instance.segments is None else len(instance.segments.names)
        self.by_segment = np.zeros((n_segments + 1, 3, TIME_BINS, 4))  # those of unknown segment last
        self.arrivals = np.zeros((n_segments + 1, TIME_BINS))

    def add(self, chunk: Episodes) -> None:
        """Add the steps of whole users."""
        from departing.kernels.fitting.forecasts import add_forecasts  # numba takes long to import
        from departing.kernels.fitting.trends import add_trends

        if not len(chunk.user):
            return
        first = np.flatnonzero(np.append(True, np.diff(chunk.user) != 0))
        end = np.append(first[1:], len(chunk.user))
        if self.group_of is None:
            self.group_of = _group_categories(chunk.category, self.instances[0].n_categories, self.n_groups)
        longest = int((end - first).max())
        if longest > len(self.totals):
            self.totals = np.vstack([self.totals, np.zeros((longest - len(self.totals), 5))])
        category, outcome = chunk.category.astype(np.int64), chunk.outcome.astype(np.int64)
        time, evidence = time_bins(chunk.time), step_evidence(chunk.user, chunk.pending, self.horizon)
        self.times["cohort"] += np.bincount(time[first], end - first, TIME_BINS)
        self.times["calendar"] += np.bincount(time, minlength=TIME_BINS)
        step_group = np.searchsorted(STEP_GROUPS, np.arange(1, STEP_GROUPS[-1] + 1), side="right") - 1
        offsets = np.cumsum([0, *self.sizes[:-1]])
        with_gradient = (chunk.user[first] % self.stride == 0) & self.with_slopes
        half = half_of(chunk.user[first]) if len(self.instances) > 1 else np.zeros(len(first), np.int64)
        for instance, own, s in self._users(half, chunk, first):
            steps = first[own], end[own], category, outcome, evidence
            responses = np.stack([instance.click, instance.depart, instance.depart_on_click])
            model = instance.normalised_prior, *instance.finite_log_probabilities, responses, IMPOSSIBLE
            before = self.calendar.sum(axis=2)
            add_forecasts(
                *steps, time, *model, step_group, len(COUNT_LABELS) - 1, self.group_of, offsets, self.n_groups,
                with_gradient[own], FORECAST_BINS, self.sums, self.slopes, self.bins, self.totals,
            )  # fmt: skip
            add_trends(*steps, chunk.time.astype(np.float64), *model, *vars(self.trends).values())
            self.by_segment[s] += self.calendar.sum(axis=2) - before
            self.arrivals[s] += np.bincount(time[first[own]], minlength=TIME_BINS)

    def _users(
        self, half: Integers, chunk: Episodes, first: Integers
    ) -> Iterator[tuple[Instance, npt.NDArray[np.bool_], int]]:
        """Instances with the users that each forecasts, by segment; those of unknown segment are last."""
        for i, instance in enumerate(self.instances):
            if instance.segments is None or chunk.segment is None:
                yield instance, half == i, -1
                continue
            segment = chunk.segment[first]
            for s in np.unique(segment[half == i]).tolist():
                name = instance.segments.names[s] if s >= 0 else None
                yield instance.in_segment(name), (half == i) & (segment == s), s

    @property
    def calendar(self) -> Floats:
        """Sums by the time of the step: responses, bins, categories, and the sums themselves."""
        start = sum(self.sizes[:-1]) * self.n_groups
        return self.sums[:, start:, :4].reshape(3, TIME_BINS, self.n_groups, 4)

    @property
    def category_names(self) -> list[str]:
        """Names of the groups of categories."""
        categories = self.instances[0].categories
        if self.group_of is None or len(categories) <= MAX_CATEGORIES:
            return [repr(name) for name in categories[: self.n_groups]]
        singles = [categories[int(np.flatnonzero(self.group_of == g)[0])] for g in range(self.n_groups)]
        return [*map(repr, singles[:-1]), "other categories"]

    def families(self) -> Iterator[Family]:
        """All families; slopes are those of all steps, and bins of time are merged to quarters of the steps."""
        self.labels["step"] = _step_labels(len(self.totals))
        steps, sampled = self.sums[..., :1], self.sums[..., 4:]
        slopes, start = self.slopes * steps / np.maximum(sampled, 1.0), 0
        for name, size in zip(FAMILIES, self.sizes, strict=True):
            cells = slice(start * self.n_groups, (start + size) * self.n_groups)
            shape = 3, size, self.n_groups
            family = Family(
                name,
                tuple(self.labels[name]),
                self.sums[:, cells, :4].reshape(*shape, 4),
                slopes[:, cells].reshape(*shape, slopes.shape[2]),
            )
            yield _merge_bins(family, self.times[name]) if name in self.times else family
            start += size


def _step_labels(longest: int) -> list[str]:
    """Descriptions of the groups of steps in a log whose users have at most `longest` steps."""
    first = STEP_GROUPS.tolist()
    ranges = [(a, max(min(b - 1, longest), a)) for a, b in pairwise(first)]
    labels = [f"at step {a}" if a == b else f"at steps {a} to {b}" for a, b in ranges]
    return [*labels, f"at step {first[-1]} and later"]


def _count_labels() -> list[str]:
    return [f"{c.format('click')} and {s.format('no-click')}" for c in COUNT_LABELS for s in COUNT_LABELS]


def _group_categories(category: Integers, n_categories: int, n_groups: int) -> Integers:
    """Group of every category: one for each if there are few, else one for each of the most frequent."""
    if n_categories <= n_groups:
        return np.arange(n_categories)
    groups = np.full(n_categories, n_groups - 1)
    frequent = np.argsort(-np.bincount(category, minlength=n_categories), kind="stable")[: n_groups - 1]
    groups[frequent] = np.arange(n_groups - 1)
    return groups


def time_bins(time: Floats) -> Integers:
    """Number of the bin of times from 0 to 1."""
    return np.asarray(np.clip((time * TIME_BINS).astype(np.int64), 0, TIME_BINS - 1))


def quarters(steps: Floats) -> Integers:
    """Quarter of every bin of time, with about equal numbers of `steps`; -1 for empty bins."""
    share = (steps.cumsum() - steps / 2) / max(steps.sum(), 1.0)  # at the middle of each bin
    quarter = np.minimum((share * QUARTERS).astype(np.int64), QUARTERS - 1)
    return np.where(steps > 0, quarter, -1)


def half_of(user: Integers) -> Integers:
    """Half of the users, 0 or 1, to which each number of a user belongs."""
    return ((user.astype(np.uint64) * GOLDEN_RATIO) >> np.uint64(63)).astype(np.int64)


def _merge_bins(family: Family, steps: Floats) -> Family:
    """The family with its bins of time merged to quarters of about equal numbers of `steps`."""
    quarter = quarters(steps)
    used = np.unique(quarter[quarter >= 0])
    if len(used) < 2:  # all at the same time
        used = used[:0]
    sums, slopes = (
        np.stack([array[:, quarter == q].sum(axis=1) for q in used], axis=1) if len(used) else array[:, :0]
        for array in (family.sums, family.slopes)
    )
    names = tuple(QUARTER_LABELS[family.name].format(i, len(used)) for i in range(1, len(used) + 1))
    return Family(family.name, names, sums, slopes)
