"""Explorer: plans instances that a person edits in the browser, in a process of its own."""

import asyncio
import os
import signal
import tomllib
from typing import Any

import msgspec
import numpy as np

from departing.model.errors import InputError
from departing.model.files import format_document, strip_header
from departing.model.instance import CLICK, STAY, Instance
from departing.planning.baselines import evaluate_baselines
from departing.planning.plan import Plan, plan
from departing.planning.policy_tree import policy_tree
from departing.policy.library import describe
from departing.policy.protocol import recommended
from departing.service import messages as m
from departing.service.event_log import json_lines
from departing.service.policy_version import TREE_DEPTH
from departing.service.workers.process import Helper, answer_requests

MAX_SIZE = 5  # types, and categories: the sliders of more do not fit on the page
GAP = 1e-4  # relative gap of the plan, below what the page shows
LOSS_GAP = 0.01  # relative gap of the losses of baselines, below what the page shows
PATH_STEPS = 12  # steps of a belief path, as many as fit on the page
MIN_SHARE = 1e-3  # of users, below which a belief path ends
NODES_PER_SECOND = 1_000_000  # of the count graph, to evaluate baselines; keeps a request near its time limit
TIMEOUT = 120.0  # seconds for a response: the first one may include the compilation of all kernels
ARGUMENTS = ("-m", "departing.service.workers.explorer")
MAX_NAME = 200  # characters of a name, as in requests to the service
WARM_UP = {"prior": [0.5, 0.5], "click": [[0.6, 0.3], [0.3, 0.6]]}


def explore(request: m.ExploreRequest) -> m.ExploreResult:
    """Plan an instance, and evaluate baselines and belief paths for the page.

    >>> blog = {"prior": [0.4, 0.6], "click": [[0.5, 0.28], [0.4, 0.39]], "categories": ["economics", "sports"]}
    >>> result = explore(m.ExploreRequest(instance=blog))
    >>> result.description, round(result.lower, 6)
    ('sports × 6, then economics', 0.650291)
    """
    instance = _instance(request)
    best = plan(instance, GAP * max(instance.best_fixed[1], 1e-9), request.seconds)
    baselines = evaluate_baselines(best, int(NODES_PER_SECOND * request.seconds) + 1)
    is_wide = best.gap > 2 * GAP * best.upper or any(
        each.evaluation.gap > LOSS_GAP * best.upper for each in baselines
    )
    return m.ExploreResult(
        instance.to_dict(),
        format_document("instance", instance.to_dict()),
        best.describe(),
        best.lower,
        best.upper,
        best.method,
        best.seconds,
        not is_wide,
        msgspec.convert(policy_tree(best.policy, instance, TREE_DEPTH).to_dict(instance), m.Branch),
        [
            m.BaselineValue(describe(each.policy, instance), each.evaluation.value, each.loss.lower, each.loss.upper)
            for each in baselines
        ],
        {"stay": _belief_path(best, STAY), "click": _belief_path(best, CLICK)},
    )


def _instance(request: m.ExploreRequest) -> Instance:
    """Return the instance of a request, checked."""
    if (request.instance is None) == (request.toml is None):
        raise InputError("Give either `instance` (JSON) or `toml` (the text of a TOML file).")
    document: Any = request.instance
    if request.toml is not None:
        try:
            document = tomllib.loads(request.toml)
        except RecursionError as error:
            raise InputError("The file is not valid TOML: it is nested too deeply.") from error
        except ValueError as error:
            raise InputError(f"The file is not valid TOML: {error}.") from error
    instance = Instance.from_dict(strip_header(document, "instance", "The instance"))
    for noun, n in (("types", instance.n_types), ("categories", instance.n_categories)):
        if n > MAX_SIZE:
            raise InputError(f"The instance has {n} {noun}; the explorer accepts at most {MAX_SIZE}.")
    for name in (*instance.types, *instance.categories):
        if len(name) > MAX_NAME:
            raise InputError(f"The name {name!r:.40}… has {len(name)} characters; at most {MAX_NAME} are accepted.")
    return instance


def _belief_path(best: Plan, outcome: int) -> list[m.BeliefStep]:
    """Return the beliefs about a user who has the same outcome at every step."""
    instance, path = best.instance, list[m.BeliefStep]()
    counts = np.zeros((instance.n_categories, 4), np.int64)
    weights = instance.normalised_prior
    while len(path) < PATH_STEPS and weights.sum() >= MIN_SHARE:
        category = int(recommended(best.policy, counts[None])[0])
        share = float(weights.sum())
        belief = dict(zip(instance.types, (weights / share).tolist(), strict=True))
        path.append(m.BeliefStep(instance.categories[category], belief, share))
        counts[category, outcome] += 1
        weights = weights * instance.outcome_probabilities[category, outcome]
    return path


class Explorer:
    """Explores in a helper process, so that planning never delays the service."""

    def __init__(self) -> None:
        self.helper = Helper(ARGUMENTS, m.ExploreResult, TIMEOUT)
        self._lock = asyncio.Lock()

    async def explore(self, request: m.ExploreRequest) -> m.ExploreResult:
        """Run `explore` in the helper, one request at a time; a cancelled request is still finished there."""
        return await asyncio.shield(self._explore(request))

    async def _explore(self, request: m.ExploreRequest) -> m.ExploreResult:
        async with self._lock:
            try:
                result = await self.helper.request(request) or await self.helper.request(request)  # in a new process
            except TimeoutError as error:
                raise InputError("Planning took too long. Try fewer types or categories.") from error
        if result is None:
            raise InputError("Planning failed for this instance. Try fewer types or categories.")
        return result

    async def close(self) -> None:
        """Stop the helper; the next request starts another."""
        await self.helper.close()


def warm_up() -> None:
    """Compile or load all kernels that planning needs."""
    for depart in (0.5, 1.0):
        explore(m.ExploreRequest(instance=WARM_UP | {"depart": depart}, seconds=0.01))
    explore(m.ExploreRequest(instance={"prior": [1.0], "click": [[0.5]]}, seconds=0.01))


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service closes the input when it stops
    os.nice(5)  # the service has priority
    with json_lines("explorer"):
        warm_up()
        answer_requests(explore, m.ExploreRequest)


if __name__ == "__main__":
    main()
