"""Bayes: infer the instance, plan, and explore by the value of information."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from inspect import signature
from math import inf
from typing import Any, ClassVar, Self

import numpy as np

from departing.fitting.likelihood import MixtureLikelihood
from departing.learning.base import Option
from departing.learning.blocks import check_growth
from departing.learning.candidates import Candidates
from departing.learning.changing_users import ChangingUsers, check_flag
from departing.learning.exploration import ExplorationBudget, allocate_block
from departing.learning.forgetting import check_half_life
from departing.learning.hierarchical import with_hierarchical_prior
from departing.learning.model_learner import TYPES
from departing.learning.posterior import Posterior, PosteriorSamples
from departing.learning.segment_candidates import SegmentCandidates
from departing.learning.segment_exploration import allocate_segment_block
from departing.learning.type_numbers import TypeNumbers
from departing.model.errors import InputError
from departing.model.instance import CLICKS, Instance
from departing.model.validation import MAX_TYPES, MAX_USERS, check_choice, check_int
from departing.planning.plan import Plan
from departing.policy.protocol import Policy
from departing.policy.schedule import Schedule

EXPLORE = ("voi", "thompson", "none")
SEGMENTS = ("known", "ignored")  # in studies and on the command line
# Posterior samples per block, and how many of them are planned for. Set by hand: 160 and 32 were tried and dropped
# again in the early history of the learner; time per block is proportional to their product.
SAMPLES, PLANS = 64, 24
MAX_REMEMBERED = 40  # schedules kept as candidates of later blocks; set by hand, each costs one valuation per sample
MIN_BLOCK = 4  # below this block size users get plans of posterior samples; set by hand, one user cannot be divided
# Users that exploration is planned for at least, even if fewer will come. Set by hand: with fewer, unlucky first
# users were never corrected; more costs regret in short runs.
MIN_HORIZON = 100_000
AUTO = "auto"


def check_types(field: str, value: int | str) -> int | str:
    """Return `value` if it is a number of types or "auto"."""
    if isinstance(value, str):
        if value != AUTO:
            raise InputError(
                f"{field} is {value!r:.40}; expected an integer from 1 to {MAX_TYPES}, or 'auto'.", field
            )
        return value
    return check_int(field, value, 1, MAX_TYPES)


def check_segments_option(field: str, value: str) -> str:
    """Return `value` if it tells whether a learner of a study knows the segments of its users."""
    return check_choice(field, value, SEGMENTS)


def parse_types(text: str) -> int | str:
    """Parse a number of types or "auto".

    >>> parse_types("3"), parse_types("auto")
    (3, 'auto')
    """
    return check_types("types", int(text) if text.removeprefix("-").isdecimal() else text)


class Bayes(ChangingUsers):
    """Infer prior, click and departure probabilities, plan, and explore.

    Sure departure is inferred. A block of users gets the plan with the largest posterior mean value, except those who
    explore.

    Parameters
    ----------
    types : int or "auto", default "auto"
        Number of types of the inferred instance. With `"auto"` it is inferred, from two to six: every block draws one
        of the numbers that are not improbable. Of given numbers one too many costs little, one too few a lot.
    categories : int or sequence of str
        Number of categories, or their names.
    seed : int, default 0
        Seed of inference and exploration.
    explore : {"voi", "thompson", "none"}, default "voi"
        `"voi"`: value of information; as many users as pay off in expectation try another policy. `"thompson"`:
        posterior sampling; users get the plans of posterior samples. `"none"`: no exploration.
    users : int, optional
        Total number of users; with it, `"voi"` explores less towards the end.
    growth : float, default 0.1
        Block size as a share of the users so far.
    half_life : int or "auto", optional
        Number of users after which a user counts half [default: none]. `"auto"` chooses it, or none, by how well
        recent blocks are predicted.
    change_detection : bool, default False
        Test every block for a change of behaviour. After one, the users before it are forgotten. A stationary site
        raises an alarm with a probability of at most about 1 %. Some users try categories that are hardly shown
        otherwise. Outcomes may be observed late; users are tested when 99 % of the outcomes of users of their age
        are known. Delays should be similar for all users: delays that become longer can look like a change.
    reward : sequence of float, optional
        Value of a click in each category, at least 0 [default: 1 each]. The expected reward is maximised.
    unit : str, default "clicks"
        Unit of `reward`, such as "euro".
    horizon : int, optional
        Largest number of recommendations to one user, for whom plans are made [default: none].
    segments : int or sequence of str, optional
        Names of the segments of users, or their number [default: none]. All segments have the same click and
        departure probabilities; each has its own prior over types, drawn to a common one as strongly as the data
        tell. What users of one segment reveal is used in all. `recommend` then gets the segments of the users.

    Examples
    --------
    >>> learner = Bayes(types=2, categories=["news", "sports"], seed=0)
    >>> learner.recommend(["ann", "bob"]).shape
    (2,)
    """

    kind = "bayes"
    saved = (*ChangingUsers.saved, "_remembered", "_budget", "_numbers")
    options: ClassVar[dict[str, Option]] = {
        "types": check_types,
        "explore": EXPLORE,
        "growth": check_growth,
        "half_life": check_half_life,
        "change_detection": check_flag,
        "segments": check_segments_option,
    }

    def __init__(
        self,
        types: int | str = AUTO,
        categories: int | Sequence[str] = (),
        seed: int = 0,
        explore: str = "voi",
        *,
        users: int | None = None,
        growth: float = 0.1,
        half_life: int | str | None = None,
        change_detection: bool = False,
        reward: Sequence[float] | None = None,
        unit: str = CLICKS,
        horizon: int | None = None,
        segments: int | Sequence[str] | None = None,
    ) -> None:
        check_choice("explore", explore, EXPLORE)
        check_types("types", types)
        known = TYPES if isinstance(types, str) else types
        super().__init__(known, categories, seed, growth, reward=reward, unit=unit, horizon=horizon)
        self.types: int | str = types
        self._set_segments(segments)
        self._numbers = TypeNumbers(self.n_categories, self.rng) if types == AUTO else None
        self.explore = explore
        self.users = None if users is None else check_int("users", users, 1, MAX_USERS)
        self.allowed: tuple[int, ...] | None = None  # categories that may be recommended, None for all
        self.loss: float | None = None  # posterior expected regret per user of the best policy so far
        self._remembered: list[Schedule] = []
        self._budget = ExplorationBudget(scale=self.objective.scale)
        self._start_catalogue()
        self._start_forgetting(
            check_half_life("half_life", half_life), check_flag("change_detection", change_detection)
        )

    @classmethod
    def from_options(cls, options: dict[str, Any], instance: Instance, users: int, seed: int) -> Self:
        """Create a learner from checked options; with the segments of `instance` unless they are ignored."""
        options = dict(options)
        known = options.pop("segments", "known") == "known" and "segments" in signature(cls).parameters
        if known and instance.segments is not None:
            options["segments"] = list(instance.segments.names)
        return super().from_options(options, instance, users, seed)

    def _restrict(self, allowed: tuple[int, ...] | None) -> None:
        self.allowed = allowed
        if allowed is not None:
            self._remembered = [p for p in self._remembered if set(p.phase_categories.tolist()) <= set(allowed)]

    def _block(self) -> list[tuple[Policy, int]]:
        self._forget()
        n, evidence = self._block_size(), self.evidence()
        if evidence is None:
            return [(self._plan_for(self.posterior.sample_prior(), self.allowed).policy, n)]
        evidence = self._draw_types(self._prepare(evidence, self.posterior.n_types))
        samples = self.posterior.sample(evidence, SAMPLES, self._starts())
        if samples.batch.segment_priors is not None:
            return self._block_by_segment(samples, n)
        if self.explore == "thompson" or (n < MIN_BLOCK and self.explore != "none"):
            users = self.rng.multinomial(n, samples.weights)
            return [(self._plan(samples, j).policy, int(users[j])) for j in np.flatnonzero(users)]
        given = self._remembered, self._budget.greedy, self.allowed, self.objective
        candidates = Candidates.of(samples, self._plans(samples), *given)
        ranked = [candidates.policies[c] for c in np.argsort(-candidates.means, kind="stable")]
        self._remembered = [policy for policy in ranked if isinstance(policy, Schedule)][:MAX_REMEMBERED]
        self.loss = candidates.expected_regret
        if self.explore == "none":
            return [(candidates.greedy, n)]
        probes = self._probes([candidates.greedy], n)
        n -= sum(users for _, users in probes)
        ahead = inf if self.users is None else max(max(self.users, MIN_HORIZON) - self.arrived - n, 0)
        return probes + allocate_block(
            candidates, n, max(int(self.effective_users), 1), min(ahead, self._horizon()), self._budget
        )

    def _block_by_segment(self, samples: PosteriorSamples, n: int) -> list[tuple[Policy, int]]:
        """Choose the policies of the next n users from samples with a prior for each segment."""
        self._update_concentration(samples)
        if self.explore == "thompson" or (n < MIN_BLOCK and self.explore != "none"):
            return self._segment_sampled(samples, n, self.allowed)
        candidates = self._segment_candidates(samples, self._segment_plans(samples, PLANS, self.allowed))
        self._remembered = candidates.best_schedules(MAX_REMEMBERED)
        self.loss = candidates.expected_regret
        if self.explore == "none":
            return [(self._policy_of(candidates.greedy), n)]
        probes = self._probes(candidates.greedy, n)
        n -= sum(users for _, users in probes)
        total = inf if self.users is None else max(max(self.users, MIN_HORIZON) - self.arrived - n, 0)
        ahead = min(total, self._horizon())
        so_far = max(int(self.effective_users), 1)
        block = allocate_segment_block(candidates, n, so_far, ahead, self._segment_budget)
        return [*probes, *((self._policy_of(policies), users) for policies, users in block)]

    def _segment_candidates(self, samples: PosteriorSamples, plans: list[Plan]) -> SegmentCandidates:
        budget, shares = self._segment_budget, self._by_segment.shares
        return SegmentCandidates.of(
            samples, plans, self._remembered, shares, budget.greedy, self.allowed, self.objective
        )

    def _draw_types(self, evidence: MixtureLikelihood) -> MixtureLikelihood:
        """Draw the number of types of this block if it is not given."""
        if self._numbers is not None:
            drawn = self._numbers.draw(evidence, self.arrived, self._starts(), self.effective_users)
            self.posterior = drawn.posterior
        return replace(evidence, n_types=self.posterior.n_types)

    def _prepare(self, evidence: MixtureLikelihood, n_types: int) -> MixtureLikelihood:
        pool = self._likeliest().pool
        evidence = with_hierarchical_prior(evidence, tuple(self._added), pool[0] if pool else None)
        return super()._prepare(evidence, n_types)

    def _posteriors(self) -> Iterable[Posterior]:
        numbers = [] if self._numbers is None else [number.posterior for number in self._numbers.numbers]
        return {id(posterior): posterior for posterior in [self.posterior, *numbers]}.values()

    def _rescale(self, scale: float) -> None:
        super()._rescale(scale)
        self._budget.rescale(scale)

    def _extend(self) -> None:
        super()._extend()
        if self._numbers is not None:
            self._numbers.n_categories = self.n_categories

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of a learner with the same arguments."""
        if self.types == AUTO and state["posterior"]:
            self.posterior.n_types = len(state["posterior"][0]["prior"])
        numbers = None if self._numbers is None else self._numbers.state()
        segments = {"concentration": self.concentration, "by_segment": self._by_segment.state()}
        segments["segment_budget"] = self._segment_budget.state()
        super().restore({"numbers": numbers} | segments | state)  # states of earlier releases have none

    def _likeliest(self) -> Posterior:
        return self.posterior if self._numbers is None else self._numbers.likeliest.posterior

    def _plans(self, samples: PosteriorSamples) -> list[Plan]:
        """Plan for some of the samples: half of them drawn by weight, half uniformly."""
        positions = (np.arange(PLANS // 2) + self.rng.random()) / (PLANS // 2)
        likely = np.minimum(np.searchsorted(samples.weights.cumsum(), positions), len(samples.batch) - 1)
        others = self.rng.choice(len(samples.batch), PLANS // 2, replace=False)
        return [self._plan(samples, j) for j in np.unique([*likely, *others])]

    def _plan(self, samples: PosteriorSamples, j: np.intp) -> Plan:
        return self._plan_for(samples.batch.instance(int(j)), self.allowed)
