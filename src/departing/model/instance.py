"""Instance: the prior over types, and outcome probabilities and reward of every category."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from departing.formatting import format_count, format_number, text_table
from departing.html_tables import html_repr
from departing.model.errors import InputError, errors_in
from departing.model.files import check_fields, read_document, write_document
from departing.model.frames import to_frame
from departing.model.instance_fields import (
    LOG_FIELDS,
    as_matrix,
    check_common_prior,
    check_horizon,
    check_order,
    check_probabilities,
    check_rewards,
    check_unit,
    compact,
    frozen,
    names_or_default,
)
from departing.model.names import default_names, find_category
from departing.model.segments import Floats as Floats
from departing.model.segments import Segments

CLICK, STAY, DEPART, CLICK_DEPART = range(4)
LOG_ZERO = -1e300  # finite stand-in for log 0, so that 0 times it is 0
CLICKS = "clicks"  # the unit of values if every click counts alike
EXTENSIONS = ("reward", "horizon", "segments")  # fields that the paper's model does not have


@dataclass(frozen=True, eq=False, repr=False)
class Instance:
    """Behaviour of users: K categories (rows), M types (columns).

    Parameters
    ----------
    prior : array_like of float, shape (M,)
        Probability of each type.
    click : array_like of float, shape (K, M)
        Click probabilities.
    depart : array_like of float, shape (K, M), or float
        Probabilities of departing after a no-click.
    depart_on_click : array_like of float, shape (K, M), or float
        Probabilities of departing after a click (0 in the paper).
    categories, types : sequence of str, optional
        Names [default: "category 0", "type 0", …].
    reward : array_like of float, shape (K,), optional
        Value of a click in each category, at least 0 [default: 1 each].
    unit : str, default "clicks"
        Unit of `reward` and so of all values, such as "euro".
    horizon : int, optional
        Largest number of recommendations to one user [default: none].
    segments : Segments, optional
        Groups of users known on arrival, each with its own prior over types. `prior` is then that of all users, and
        None stands for the one that follows from the segments.

    Raises
    ------
    InputError
        If a field is invalid, or some type never departs from some category.

    Examples
    --------
    >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    >>> shop.n_categories, shop.n_types
    (2, 2)
    >>> shop
    Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]], depart=1.0)
    """

    prior: Floats
    click: Floats
    depart: Floats
    depart_on_click: Floats
    categories: tuple[str, ...]
    types: tuple[str, ...]
    reward: Floats
    unit: str
    horizon: int | None
    segments: Segments | None

    def __init__(
        self,
        prior: npt.ArrayLike | None,
        click: npt.ArrayLike,
        depart: npt.ArrayLike = 1.0,
        depart_on_click: npt.ArrayLike = 0.0,
        categories: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        *,
        reward: npt.ArrayLike | None = None,
        unit: str = CLICKS,
        horizon: int | None = None,
        segments: Segments | None = None,
    ) -> None:
        q = check_probabilities("prior", check_common_prior(prior, segments))
        p = check_probabilities("click", click)
        if q.ndim != 1 or q.size == 0:
            raise InputError(f"prior has shape {q.shape}; expected one probability for each type.")
        if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] != q.size:
            raise InputError(
                f"click has shape {p.shape}; expected a row for each category and {q.size} columns, one per type."
            )
        if abs(q.sum() - 1.0) > 1e-9:
            raise InputError(f"prior sums to {q.sum():.12g}; expected 1.")
        self.__dict__.update(  # the class is frozen
            prior=frozen(q),
            click=frozen(p),
            depart=frozen(as_matrix("depart", depart, p.shape)),
            depart_on_click=frozen(as_matrix("depart_on_click", depart_on_click, p.shape)),
            categories=names_or_default("categories", "category", categories, p.shape[0]),
            types=names_or_default("types", "type", types, p.shape[1]),
            reward=frozen(check_rewards(reward, p.shape[0])),
            unit=check_unit(unit),
            horizon=check_horizon(horizon),
            segments=segments,
        )
        if segments is not None and segments.prior.shape[1] != q.size:
            raise InputError(
                f"segments.prior has {segments.prior.shape[1]} columns; expected {q.size}, one per type."
            )
        self._check_departures()

    def _check_departures(self) -> None:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            stuck = (
                (self.departure_probabilities <= 0)
                | ~np.isfinite(self.click / self.departure_probabilities)
                | ~np.isfinite(1 / self.departure_probabilities)
            )
        for a, x in np.argwhere(stuck):
            why = (
                "so its value is infinite; "
                if self.horizon is None
                else "which is not supported, with a horizon either; "
            )
            raise InputError(
                f"Type {self.types[x]!r} never departs from category {self.categories[a]!r} "
                f"(click {self.click[a, x]:g}, depart {self.depart[a, x]:g}, "
                f"depart_on_click {self.depart_on_click[a, x]:g}), {why}"
                "every type needs a positive probability of departing from every category"
                f"{'.' if self.horizon is None else ', such as depart=1e-6.'}"
            )

    @property
    def n_categories(self) -> int:
        """Number of categories, K."""
        return int(self.click.shape[0])

    @property
    def n_types(self) -> int:
        """Number of types, M."""
        return int(self.click.shape[1])

    @cached_property
    def outcome_probabilities(self) -> Floats:
        """Probability of every outcome, `[K, 4, M]`: click, stay, depart, click with departure.

        >>> shop = Instance(prior=[1.0], click=[[0.5]], depart=0.2)
        >>> shop.outcome_probabilities[0, :, 0]
        array([0.5, 0.4, 0.1, 0. ])
        """
        p, d, click_depart = self.click, self.depart, self.depart_on_click
        return frozen(np.stack([p * (1 - click_depart), (1 - p) * (1 - d), (1 - p) * d, p * click_depart], axis=1))

    @cached_property
    def cumulative_prior(self) -> Floats:
        """Cumulative sums of the prior, divided by the last: `[M]`."""
        sums = self.prior.cumsum()
        return np.asarray(sums / sums[-1])

    @cached_property
    def cumulative_outcome_probabilities(self) -> Floats:
        """Cumulative sums of the outcome probabilities but for the last, which is 1: `[K, 3, M]`."""
        return np.asarray(self.outcome_probabilities.cumsum(axis=1)[:, :3])

    @cached_property
    def log_outcome_probabilities(self) -> Floats:
        """Logarithms of `outcome_probabilities`, accurate also near 0 and 1; minus infinity for probability 0."""
        with np.errstate(divide="ignore"):
            click, no_click = np.log(self.click), np.log1p(-self.click)
            depart, stay = np.log(self.depart), np.log1p(-self.depart)
            click_depart, click_stay = np.log(self.depart_on_click), np.log1p(-self.depart_on_click)
        return frozen(
            np.stack([click + click_stay, no_click + stay, no_click + depart, click + click_depart], axis=1)
        )

    @cached_property
    def finite_log_probabilities(self) -> tuple[Floats, Floats]:
        """Logarithms of the prior, `[M]`, and of the outcome probabilities, `[4 K, M]`; that of 0 is `LOG_ZERO`."""
        with np.errstate(divide="ignore"):
            prior = np.maximum(np.log(self.prior), LOG_ZERO)
        return frozen(prior), frozen(np.maximum(self.log_outcome_probabilities, LOG_ZERO).reshape(-1, self.n_types))

    @cached_property
    def departure_probabilities(self) -> Floats:
        """Probability of departing at one step, `[K, M]`."""
        return frozen((1 - self.click) * self.depart + self.click * self.depart_on_click)

    @cached_property
    def expected_reward(self) -> Floats:
        """Expected reward of one recommendation, `[K, M]`: `reward * click`."""
        return frozen(self.reward[:, None] * self.click)

    @cached_property
    def fixed_values(self) -> Floats:
        """Values of the fixed policies by type, `[K, M]`: `expected_reward / departure_probabilities`.

        With a horizon H this is multiplied by the probability of departing within H steps.
        """
        values = self.expected_reward / self.departure_probabilities
        if self.horizon is not None:
            with np.errstate(divide="ignore"):
                values = values * -np.expm1(self.horizon * np.log1p(-self.departure_probabilities))
        return frozen(values)

    @cached_property
    def equal_rewards(self) -> bool:
        """True if a click has the same reward in all categories, as in the paper."""
        return bool((self.reward == self.reward[0]).all())

    @cached_property
    def extensions(self) -> tuple[str, ...]:
        """Names of the fields by which the instance extends the model of the paper."""
        used = (bool((self.reward != 1).any()) or self.unit != CLICKS, self.horizon, self.segments)
        return tuple(name for name, value in zip(EXTENSIONS, used, strict=True) if value)

    def in_segment(self, name: str | None) -> "Instance":
        """Return the instance of the users of one segment, without segments; of all users for an unknown one.

        >>> devices = Segments(["mobile", "desktop"], share=[0.75, 0.25], prior=[[0.8, 0.2], [0.4, 0.6]])
        >>> shop = Instance(None, click=[[0.5, 0.28], [0.4, 0.39]], segments=devices)
        >>> shop.prior, shop.in_segment("desktop").prior
        (array([0.7, 0.3]), array([0.4, 0.6]))
        """
        if self.segments is None:
            return self
        return self.replace(prior=self.segments.prior_of(name), segments=None)

    @cached_property
    def normalised_prior(self) -> Floats:
        """Prior divided by its sum, `[M]`: it sums to 1 up to rounding."""
        return frozen(self.prior / self.prior.sum())

    @cached_property
    def best_fixed(self) -> tuple[int, float]:
        """Category of the best fixed policy, and its value per user, in clicks or the unit of the reward.

        >>> category, clicks = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]]).best_fixed
        >>> category, round(clicks, 6)
        (1, 0.650273)
        """
        values = self.fixed_values @ self.normalised_prior
        return int(values.argmax()), float(values.max())

    @cached_property
    def sure_departure(self) -> bool:
        """True if every no-click ends the visit, as in most of the paper: `depart` is 1 everywhere."""
        return bool((self.depart == 1).all())

    @cached_property
    def structure(self) -> str | None:
        """The paper's structure of two types and two categories with sure departure; None for other instances.

        Instances with a horizon or with different rewards have none.

        With the largest click probability first (the paper's Remark 1): a dominant 'row' if its category is the
        better one for the other type too; else a dominant 'column' if the other category has a larger click
        probability for the first type than for the second; else a dominant 'diagonal'.

        >>> Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]]).structure
        'column'
        """
        if self.click.shape != (2, 2) or not self.sure_departure or self.depart_on_click.any():
            return None
        if self.horizon is not None or not self.equal_rewards:
            return None
        return two_by_two_structure(self.click)[0]

    def category_index(self, name: str | int) -> int:
        """Return the index of a category given by name or index.

        >>> Instance([1.0], [[0.5], [0.2]], categories=["news", "sport"]).category_index("sport")
        1
        """
        return find_category(name, self.categories)

    def relabel(self, categories: Sequence[int] | None = None, types: Sequence[int] | None = None) -> "Instance":
        """Return the instance with categories and types in another order, given as old indices."""
        a = check_order("categories", categories, self.n_categories)
        x = check_order("types", types, self.n_types)
        tables = {name: getattr(self, name)[np.ix_(a, x)] for name in ("click", "depart", "depart_on_click")}
        return self.replace(
            prior=self.prior[x],
            categories=[self.categories[i] for i in a],
            types=[self.types[i] for i in x],
            reward=self.reward[a],
            segments=None if self.segments is None else self.segments.relabel(x),
            **tables,
        )

    def replace(self, **fields: Any) -> "Instance":
        """Return a copy with some constructor arguments replaced.

        New segments determine the prior. To give an instance with segments another prior, replace its segments or
        set them to None.

        >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.39]])
        >>> shop.replace(prior=[0.5, 0.5], depart=0.5)
        Instance(prior=[0.5, 0.5], click=[[0.5, 0.28], [0.4, 0.39]], depart=0.5)
        """
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if "reward" not in self.extensions:  # by default as many as there are categories
            del own["reward"]
        if fields.get("segments") is not None:
            own["prior"] = None
        return Instance(**(own | fields))

    @cached_property
    def _key(self) -> tuple[object, ...]:
        arrays = (self.prior, self.click, self.depart, self.depart_on_click, self.reward)
        rest = (self.categories, self.types, self.unit, self.horizon, self.segments)
        return (*(array.tobytes() for array in arrays), *rest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Instance):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        fields, size = self.to_dict(), self.click.size
        if self.segments is not None:
            fields["segments"], size = self.segments, max(size, self.segments.prior.size)
        if fields["categories"] == default_names("category", self.n_categories):
            del fields["categories"]
        if fields["types"] == default_names("type", self.n_types):
            del fields["types"]
        if size > 100:
            return f"<Instance with {self.n_categories} categories and {self.n_types} types>"
        return f"Instance({', '.join(f'{name}={value!r}' for name, value in fields.items())})"

    def __str__(self) -> str:
        head, rows = self.table(max_categories=20)
        return f"{self.describe()}\n{text_table(head, rows)}"

    def describe(self) -> str:
        """Size of the instance in one phrase, with its rewards, horizon and segments."""
        categories = format_count(self.n_categories, "category", "categories")
        text = f"Instance with {categories} and {format_count(self.n_types, 'type')} of users"
        if "reward" in self.extensions:
            rewards = ", ".join(
                f"{name} {reward:g}" for name, reward in zip(self.categories[:5], self.reward, strict=False)
            )
            text += f", reward of a click in {self.unit}: {rewards}{', …' if self.n_categories > 5 else ''}"
        if self.horizon is not None:
            text += f", at most {format_count(self.horizon, 'recommendation')} to a user"
        if self.segments is not None:
            text += f", in {format_count(len(self.segments.names), 'segment')}"
        return text

    def table(self, max_categories: int) -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table of the probabilities, three digits each, a column for each type.

        >>> shop = Instance(prior=[0.4, 0.6], click=[[0.5, 0.28], [0.4, 0.391]], categories=["news", "sport"])
        >>> print(shop)
        Instance with 2 categories and 2 types of users
        probability   type 0 (40%)  type 1 (60%)
        click, news          0.500         0.280
        click, sport         0.400         0.391
        depart               1.000         1.000
        """
        head = [f"{name} ({share:.0%})" for name, share in zip(self.types, self.prior, strict=True)]
        rows = []
        for field in ("click", "depart", "depart_on_click"):
            values, label = getattr(self, field), field.replace("_", " ")
            if field == "click" or (values != values.flat[0]).any():
                named = list(zip((f"{label}, {name}" for name in self.categories), values, strict=True))
            else:
                named = [(label, values[0])] if values.any() else []
            rows += [[name, *(format_number(value, 3) for value in row)] for name, row in named[:max_categories]]
            if len(named) > max_categories:
                rows.append([f"{label}, {len(named) - max_categories:,} more", *[""] * self.n_types])
        if self.segments is not None:
            rows += [
                [f"prior, {name} ({share:.0%})", *(format_number(value, 3) for value in prior)]
                for name, share, prior in zip(
                    self.segments.names[:max_categories], self.segments.share, self.segments.prior, strict=False
                )
            ]
            if len(self.segments.names) > max_categories:
                more = len(self.segments.names) - max_categories
                rows.append([f"prior, {more:,} more segments", *[""] * self.n_types])
        return ["probability", *head], rows

    def _repr_html_(self) -> str:
        return html_repr(self.describe(), *self.table(max_categories=4))

    def to_frame(self) -> Any:
        """Return the probabilities as a data frame of pandas, or of polars if pandas is not installed.

        Returns
        -------
        DataFrame
            One row for each type and category: type, share, category, click, depart, depart_on_click, and reward if
            the instance has rewards.
        """
        return to_frame(self.columns())

    def columns(self) -> dict[str, Any]:
        """Columns of `to_frame`, `[M K]` each."""
        k, m = self.click.shape
        rewards = {"reward": np.tile(self.reward, m)} if "reward" in self.extensions else {}
        return {
            "type": np.repeat(self.types, k),
            "share": np.repeat(self.prior, k),
            "category": np.tile(self.categories, m),
            "click": self.click.T.reshape(-1),
            "depart": self.depart.T.reshape(-1),
            "depart_on_click": self.depart_on_click.T.reshape(-1),
        } | rewards

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, as in a file."""
        fields: dict[str, Any] = {
            "prior": self.prior.tolist(),
            "click": self.click.tolist(),
            "depart": compact(self.depart),
        }
        if self.depart_on_click.any():
            fields["depart_on_click"] = compact(self.depart_on_click)
        fields |= {"categories": list(self.categories), "types": list(self.types)}
        if "reward" in self.extensions:
            fields |= {"reward": self.reward.tolist(), "unit": self.unit}
        if self.horizon is not None:
            fields["horizon"] = self.horizon
        if self.segments is not None:
            fields["segments"] = self.segments.to_dict()
        return fields

    @classmethod
    def from_dict(cls, document: dict[str, Any], where: str = "The instance") -> Self:
        """Return an instance from the fields of `document`; error messages start with `where`."""
        optional = {"depart", "depart_on_click", "categories", "types", "unit", *EXTENSIONS}
        if "segments" in document:  # their common prior is that of all users
            optional, document = optional | {"prior"}, {"prior": None} | document
        check_fields(document, {"prior", "click"} - optional, optional | {"log"}, where)  # a fit adds a table `log`
        _check_log_fields(document.get("log"), optional | {"prior", "click"}, where)
        with errors_in(where):
            fields = {field: value for field, value in document.items() if field != "log"}
            if "segments" in fields:
                fields["segments"] = Segments.from_dict(fields["segments"])
            return cls(**fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an instance from a TOML or JSON file."""
        return cls.from_dict(read_document(path, "instance"), where=repr(str(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the instance to a TOML or JSON file, by the suffix of `path`."""
        write_document(path, "instance", self.to_dict())


def _check_log_fields(log: object, own: set[str], where: str) -> None:
    """Raise if the table `log` has unknown fields, such as the `own` fields of an instance after the line `[log]`."""
    if not isinstance(log, dict):
        return  # LoggedPolicy checks the values
    for field in sorted(own & log.keys()):
        raise InputError(
            f"{where} has the field {field!r} in the table [log], where it has no effect; expected it among the "
            f"fields of the instance. In a TOML file, move the line `{field} = …` above the first [table]."
        )
    check_fields(log, set(), set(LOG_FIELDS), f"{where}, log")


STRUCTURES = ("row", "column", "diagonal")


def two_by_two_structure(click: Floats) -> tuple[str, int, int]:
    """The paper's structure of 2 × 2 click probabilities, and the category and the type that it calls first.

    Of several largest probabilities the one with the simplest structure is first.
    """
    candidates = []
    for a, x in np.argwhere(click == click.max()):
        (_, other), (second, both) = click[[a, 1 - a]][:, [x, 1 - x]]
        structure = 0 if other >= both else 1 if second >= both else 2
        candidates.append((structure, int(a), int(x)))
    structure, a, x = min(candidates)
    return STRUCTURES[structure], a, x
