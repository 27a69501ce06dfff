"""Random instances of a study, described as data."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from departing.model.errors import InputError, errors_in
from departing.model.files import check_fields
from departing.model.instance import Instance
from departing.model.validation import check_float, check_int, check_seed
from departing.planning.plan import plan_reference

REQUIRED = {"name", "types", "categories"}
OPTIONAL = {"group", "prior_concentration", "click", "depart", "draws", "first_seed"}
CONDITION = {"fixed_loss", "fixed_loss_share"}
MAX_DRAWS = 10**5  # against typing errors; a study of this size takes months
MAX_TRIES = 10**4  # of rejection sampling: a condition that fails so often is taken to be impossible
RELATIVE_GAP = 0.02  # of `fixed_loss`: plans this precise decide the condition for all but 2% of the loss

Range = tuple[float, float]


@dataclass(frozen=True)
class InstanceSampler:
    """Distribution of instances: a prior from Dirichlet(`concentration`), probabilities uniform in ranges.

    Of `draws` instances, with seeds from `first_seed`, a share of `fixed_loss_share`, spread evenly, is drawn on the
    condition that the best fixed category loses at least a fraction `fixed_loss` of the optimum.
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
    def from_table(cls, table: dict[str, Any], where: str) -> "InstanceSampler":
        """Build a sampler from a table of a study; `where` names the table in errors."""
        check_fields(table, REQUIRED, OPTIONAL | CONDITION, where)
        with errors_in(where):
            return cls(
                types=check_int("types", table["types"], 1, 1000),
                categories=check_int("categories", table["categories"], 1, 1000),
                concentration=check_float("prior_concentration", table.get("prior_concentration", 1.0), 1e-3, 1e6),
                click=_range("click", table.get("click", [0.1, 0.9])),
                depart=_range("depart", table.get("depart", 1.0)),
                draws=check_int("draws", table.get("draws", 1), 1, MAX_DRAWS),
                first_seed=check_seed(table.get("first_seed", 0)),
                fixed_loss=check_float("fixed_loss", table.get("fixed_loss", 0.0), 0.0, 1.0),
                fixed_loss_share=check_float("fixed_loss_share", table.get("fixed_loss_share", 1.0), 0.0, 1.0),
            )

    def sample(self) -> list[tuple[int, Instance]]:
        """Draw all instances, each with its seed."""
        return [(self.first_seed + i, self._draw(i)) for i in range(self.draws)]

    def _draw(self, i: int) -> Instance:
        """Draw instance `i`, which does not depend on the number of draws."""
        rng = np.random.default_rng([self.first_seed + i, self.types, self.categories])
        conditioned = int((i + 1) * self.fixed_loss_share + 1e-9) > int(i * self.fixed_loss_share + 1e-9)
        if not conditioned or self.fixed_loss == 0:
            return self._draw_any(rng)
        for _ in range(MAX_TRIES):
            instance = self._draw_any(rng)
            if fixed_loses(instance, self.fixed_loss):
                return instance
        raise InputError(
            f"fixed_loss is {self.fixed_loss:g}; the best fixed category lost less in all of {MAX_TRIES} draws. "
            "Choose a smaller value or wider ranges."
        )

    def _draw_any(self, rng: np.random.Generator) -> Instance:
        shape = (self.categories, self.types)
        prior = rng.dirichlet(np.full(self.types, self.concentration))
        return Instance(prior / prior.sum(), rng.uniform(*self.click, shape), rng.uniform(*self.depart, shape))


def _range(field: str, value: Any) -> Range:
    """Range of probabilities from one number or two."""
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2:
        raise InputError(f"{field} is {value!r:.80}; expected a probability, or the ends of a range: [0.1, 0.9].")
    low, high = (check_float(field, end, 0.0, 1.0) for end in ends)
    if low > high:
        raise InputError(f"{field} is {value!r}; expected the smaller probability first.")
    return low, high


def fixed_loses(instance: Instance, fraction: float) -> bool:
    """Return True if the best fixed category certainly loses at least this fraction of the optimum."""
    fixed = instance.best_fixed[1]
    return fixed <= (1 - fraction) * plan_reference(instance, max(RELATIVE_GAP * fraction * fixed, 1e-9)).lower
