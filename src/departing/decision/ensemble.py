"""Ensemble: a fitted instance with bootstrap draws of it, and the values of policies under all of them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from departing.decision.log_value import LogValue
from departing.decision.policy_graph import PolicyGraph
from departing.evaluation.closed_form import schedule_values
from departing.fitting.fit import Fit
from departing.fitting.optimisation import maximise
from departing.fitting.type_matching import match_types
from departing.model import random_streams
from departing.model.instance import Floats, Instance
from departing.model.progress import Progress
from departing.planning.controller import Controller
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

# Values are needed to a small fraction of the sampling error of a log, which is some percent of the value.
GRAPH_GAP = 1e-3
GRAPH_NODES = 20_000  # counts of one policy; 0.1 s
TABLES = ("click", "depart", "depart_on_click")


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Instances of the same shape: the fitted one first, then bootstrap draws.

    Attributes
    ----------
    instances : list of Instance
        The fitted instance and `n - 1` draws.
    log_values : array [n]
        Clicks per user under the policy of the log, in the log and in each resample of it.
    """

    instances: list[Instance]
    log_values: Floats

    @classmethod
    def bootstrap(cls, fit: Fit, draws: int, seed: int, progress: Progress | None = None) -> Self:
        """Refit `draws` samples of the users with replacement, starting at the fit."""
        rng = np.random.default_rng([seed, random_streams.DECISION])
        likelihood, log = fit.likelihood, LogValue.of(fit.histories)
        users, total = likelihood.users, int(likelihood.users.sum())
        instances, values = [fit.instance], [log.value(users)]
        for done in range(draws):
            resampled = rng.multinomial(total, users / total).astype(np.float64)
            kept = resampled > 0
            rows = replace(
                likelihood,
                users=resampled[kept],
                successes=likelihood.successes[kept],
                trials=likelihood.trials[kept],
            )
            parameters = match_types(maximise(rows, fit.logits[None], fit.pseudocount).parameters, fit.instance)
            instances.append(Instance(**vars(parameters), categories=fit.instance.categories))
            values.append(log.value(resampled))
            if progress is not None:
                progress(done + 1, draws)
        return cls(instances, np.array(values))

    @cached_property
    def stacked(self) -> Instance:
        """All instances as the types of one, `n · M` types."""
        tables = [np.concatenate([getattr(each, name) for each in self.instances], axis=1) for name in TABLES]
        prior = np.concatenate([each.prior for each in self.instances])
        return Instance(prior / prior.sum(), tables[0], tables[1], tables[2])

    @cached_property
    def priors(self) -> Floats:
        """Shares of the types, `[n, M]`."""
        return np.array([each.normalised_prior for each in self.instances])

    def restrict(self, categories: tuple[int, ...]) -> "Ensemble":
        """The same with some of the categories only."""
        rows = list(categories)
        names = [self.instances[0].categories[a] for a in rows]
        kept = [
            each.replace(categories=names, **{name: getattr(each, name)[rows] for name in TABLES})
            for each in self.instances
        ]
        return Ensemble(kept, self.log_values)

    def values(self, policy: Policy | Controller) -> Floats:
        """Expected clicks per user of a policy or a controller under each of the instances, `[n]`."""
        if isinstance(policy, Controller):
            copies = replace(policy, vectors=np.tile(policy.vectors, (1, len(self.instances))))
            by_type = copies.solve(self.stacked).vectors[policy.start]
        elif isinstance(policy, Schedule):
            by_type = np.mean(schedule_values(self.stacked, policy), axis=0)
        else:
            fitted = self.instances[0]
            gap = GRAPH_GAP * float(fitted.best_fixed[1])
            by_type = PolicyGraph.follow(policy, fitted, gap, GRAPH_NODES).values(self.stacked)
        return self.average(by_type)

    @cached_property
    def fixed_values(self) -> Floats:
        """Values of the fixed policies under each of the instances, `[K, n]`."""
        return np.array([self.average(row) for row in self.stacked.fixed_values])

    def average(self, by_type: Floats) -> Floats:
        """Mean over the types of every instance, `[n]`."""
        return np.asarray((by_type.reshape(self.priors.shape) * self.priors).sum(axis=1))
