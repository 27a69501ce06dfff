"""Random instances as data: how to draw them, and which draws to take."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.model.errors import InputError
from departing.model.files import check_fields
from departing.model.instance import Instance
from departing.model.validation import check_float, check_int, check_seed
from departing.planning.plan import plan

REQUIRED = {"name", "types", "categories"}
OPTIONAL = {"group", "prior_concentration", "click", "depart", "draws", "first_seed"}
CONDITION = {"fixed_loss", "fixed_loss_share"}
MOST_DRAWS, MOST_TRIES = 10**5, 10**4
FINE = 0.02  # of the loss: the gap of the plans that tell how much a fixed category loses

Range = tuple[float, float]


@dataclass(frozen=True)
class Draws:
    """Instances to draw: a prior from Dirichlet(`concentration`), chances uniform in ranges.

    Of `draws` instances, with seeds from `first_seed`, a share of `fixed_loss_share`, spread evenly, is drawn on the
    condition that the best fixed category loses at least `fixed_loss` of the optimum.
    """

    types: int
    categories: int
    concentration: float
    click: Range
    depart: Range
    draws: int
    first_seed: int
    fixed_loss: float
    fixed_loss_share: float

    @classmethod
    def from_table(cls, table: dict[str, Any], where: str) -> "Draws":
        """The draws that a table of a study tells of."""
        check_fields(table, REQUIRED, OPTIONAL | CONDITION, where)
        try:
            return cls(
                types=check_int("types", table["types"], 1, 1000),
                categories=check_int("categories", table["categories"], 1, 1000),
                concentration=check_float("prior_concentration", table.get("prior_concentration", 1.0), 1e-3, 1e6),
                click=_range("click", table.get("click", [0.1, 0.9])),
                depart=_range("depart", table.get("depart", 1.0)),
                draws=check_int("draws", table.get("draws", 1), 1, MOST_DRAWS),
                first_seed=check_seed(table.get("first_seed", 0)),
                fixed_loss=check_float("fixed_loss", table.get("fixed_loss", 0.0), 0.0, 1.0),
                fixed_loss_share=check_float("fixed_loss_share", table.get("fixed_loss_share", 1.0), 0.0, 1.0),
            )
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    def drawn(self) -> list[tuple[int, Instance]]:
        """The instances, each with its seed."""
        return [(self.first_seed + i, self._draw(i)) for i in range(self.draws)]

    def _draw(self, i: int) -> Instance:
        """Instance number i, which does not depend on how many there are."""
        rng = np.random.default_rng([self.first_seed + i, self.types, self.categories])
        chosen = int((i + 1) * self.fixed_loss_share + 1e-9) > int(i * self.fixed_loss_share + 1e-9)
        if not chosen or self.fixed_loss == 0:
            return self._any(rng)
        for _ in range(MOST_TRIES):
            instance = self._any(rng)
            if loses(instance, self.fixed_loss):
                return instance
        raise InputError(
            f"fixed_loss is {self.fixed_loss:g}; in {MOST_TRIES} draws the best fixed category never lost so much."
        )

    def _any(self, rng: np.random.Generator) -> Instance:
        shape = (self.categories, self.types)
        prior = rng.dirichlet(np.full(self.types, self.concentration))
        return Instance(prior / prior.sum(), rng.uniform(*self.click, shape), rng.uniform(*self.depart, shape))


def _range(field: str, value: Any) -> Range:
    """A number, or a least and a largest one."""
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2:
        raise InputError(f"{field} is {value!r:.80}; expected a chance, or the least and the largest one.")
    low, high = (check_float(field, end, 0.0, 1.0) for end in ends)
    if low > high:
        raise InputError(f"{field} is {value!r}; expected the smaller chance first.")
    return low, high


def loses(instance: Instance, share: float) -> bool:
    """Whether the best fixed category provably loses at least this share of the optimum."""
    fixed = instance.best_fixed[1]
    return fixed <= (1 - share) * plan(instance, gap=max(FINE * share * fixed, 1e-9)).lower
