"""The explorer: an instance planned while a person plays with it, in a process of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec
import numpy as np

from departing.model.errors import InputError
from departing.model.files import format_document, strip_header
from departing.model.instance import CLICK, STAY, Instance
from departing.planning.baselines import rivals
from departing.planning.plan import Plan, plan
from departing.planning.policy_text import outline
from departing.policy.library import describe
from departing.policy.protocol import recommended
from departing.service.api import messages as m

MOST = 5  # types, and categories
GAP = 1e-4  # of the value is near enough
MARGIN = 0.01  # of the value: a bracket of what simpler policies lose that is no wider is narrow
DEPTH = 4  # steps of the decision graph
WALK = 12  # steps of the walks
LEAST = 1e-3  # share of users below which a walk ends
NODES = 1_000_000  # counts that are followed for simpler policies, for every second
PATIENCE = 120.0  # seconds after which the helper is given up; the first time kernels may have to be compiled
HELPER = "from departing.service.workers.explorer import main; main()"
SMALL = {"prior": [0.5, 0.5], "click": [[0.6, 0.3], [0.3, 0.6]]}


def explore(ask: m.ExploreRequest) -> m.ExploreResult:
    """The best policy of an instance, and what there is to see about it.

    >>> blog = {"prior": [0.4, 0.6], "click": [[0.5, 0.28], [0.4, 0.39]], "categories": ["economics", "sports"]}
    >>> found = explore(m.ExploreRequest(instance=blog))
    >>> found.description, round(found.lower, 6)
    ('sports × 6, then economics', 0.650291)
    """
    instance = _instance(ask)
    found = plan(instance, GAP * max(instance.best_fixed[1], 1e-9), ask.seconds)
    held = rivals(found, int(NODES * ask.seconds) + 1)
    wide = found.gap > 2 * GAP * found.upper or any(rival.found.gap > MARGIN * found.upper for rival in held)
    return m.ExploreResult(
        instance.to_dict(),
        format_document("instance", instance.to_dict()),
        found.words(),
        found.lower,
        found.upper,
        found.method,
        found.seconds,
        not wide,
        msgspec.convert(outline(found.policy, instance, DEPTH).to_dict(instance), m.Branch),
        [
            m.BaselineValue(describe(rival.policy, instance), rival.found.value, rival.loss.lower, rival.loss.upper)
            for rival in held
        ],
        {"stay": _walk(found, STAY), "click": _walk(found, CLICK)},
    )


def _instance(ask: m.ExploreRequest) -> Instance:
    if (ask.instance is None) == (ask.toml is None):
        raise InputError("Give either an instance, or the text of a TOML file.")
    document: Any = ask.instance
    if ask.toml is not None:
        try:
            document = tomllib.loads(ask.toml)
        except RecursionError as error:
            raise InputError("The file is not valid TOML: it is nested too deeply.") from error
        except ValueError as error:
            raise InputError(f"The file is not valid TOML: {error}.") from error
    instance = Instance.from_dict(strip_header(document, "instance", "The instance"))
    for noun, n in (("types", instance.n_types), ("categories", instance.n_categories)):
        if n > MOST:
            raise InputError(f"The instance has {n} {noun}; the explorer takes up to {MOST}.")
    for name in (*instance.types, *instance.categories):
        if len(name) > 200:
            raise InputError(f"The name {name!r:.40}… has {len(name)} characters; at most 200 are taken.")
    return instance


def _walk(found: Plan, outcome: int) -> list[m.BeliefStep]:
    """The beliefs about a user of whom one always sees the same outcome."""
    instance, places = found.instance, list[m.BeliefStep]()
    counts = np.zeros((instance.n_categories, 4), np.int64)
    weights = instance.normalised_prior
    while len(places) < WALK and weights.sum() >= LEAST:
        category = int(recommended(found.policy, counts[None])[0])
        share = float(weights.sum())
        belief = dict(zip(instance.types, (weights / share).tolist(), strict=True))
        places.append(m.BeliefStep(instance.categories[category], belief, share))
        counts[category, outcome] += 1
        weights = weights * instance.outcome_probabilities[category, outcome]
    return places


class Answer(msgspec.Struct):
    """What the helper says: what it found, or what is wrong."""

    found: m.ExploreResult | None = None
    problem: str = ""


class Explorer:
    """Explores in a helper process, made when it is first needed: whoever serves never waits for a plan."""

    def __init__(self) -> None:
        self._helper: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def explore(self, ask: m.ExploreRequest) -> m.ExploreResult:
        """As `explore`, one after the other; who is no longer waited for is finished all the same."""
        return await asyncio.shield(self._explore(ask))

    async def _explore(self, ask: m.ExploreRequest) -> m.ExploreResult:
        line = msgspec.json.encode(ask) + b"\n"
        async with self._turn:
            told = await self._told(line) or await self._told(line)  # a helper that died meanwhile is made anew
        if not told:
            raise InputError("The explorer died of this instance; change it a little.")
        answer = msgspec.json.decode(told, type=Answer)
        if answer.found is None:
            raise InputError(answer.problem)
        return answer.found

    async def _told(self, line: bytes) -> bytes:
        """The helper's answer, empty if there is none."""
        if self._helper is None or self._helper.returncode is not None:
            self._helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", HELPER),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                limit=1 << 22,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        told = b""
        try:
            with suppress(ConnectionError):
                self._helper.stdin.write(line)
                await self._helper.stdin.drain()
                async with asyncio.timeout(PATIENCE):
                    told = await self._helper.stdout.readline()
        except TimeoutError as error:
            await self.close()
            raise InputError("Planning took too long; change the instance a little.") from error
        if not told:
            await self.close()
        return told

    async def close(self) -> None:
        """End the helper; it is made anew if it is needed again."""
        helper, self._helper = self._helper, None
        if helper is not None:
            if helper.returncode is None:
                helper.kill()
            await helper.wait()


def answer_all(asks: BinaryIO, answers: BinaryIO) -> None:
    """Answer one line after the other, until there are no more."""
    decode = msgspec.json.Decoder(m.ExploreRequest).decode
    for line in asks:
        try:
            answer = Answer(explore(decode(line)))
        except InputError as error:
            answer = Answer(problem=str(error))
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def warm_up() -> None:
    """Have all that planning needs compiled or loaded."""
    for depart in (0.5, 1.0):
        explore(m.ExploreRequest(instance=SMALL | {"depart": depart}, seconds=0.01))
    explore(m.ExploreRequest(instance={"prior": [1.0], "click": [[0.5]]}, seconds=0.01))


def main() -> None:
    """Be the helper: explore what comes in until nothing more can come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of what is asked is the end
    os.nice(5)  # recommending comes first
    warm_up()
    answer_all(sys.stdin.buffer, sys.stdout.buffer)
