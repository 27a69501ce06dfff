"""A user of a running service: what is known of one, and what becomes of that as they act.

Nothing here knows of stores, clocks or HTTP: functions take a user and change it. A step is *open* until its outcome
is known for good: whether there was a click, and whether the user stayed. Whoever comes back has stayed.
"""

from math import inf

import msgspec
import numpy as np

from departing.model.counts import Integers
from departing.model.errors import InputError
from departing.model.instance import CLICK, CLICK_DEPART, DEPART, STAY

MOST_OPEN = 50  # steps of a user that wait for an answer
UNANSWERED = ("no-click", "not-seen")  # what a recommendation that was never answered means


class RefusedError(InputError):
    """Something a client sent that does not go with what is known."""


class Step(msgspec.Struct, array_like=True):
    """A recommendation whose outcome is not known for good."""

    event: int
    category: int
    clicked: bool | None = None
    departed: bool | None = None


class User(msgspec.Struct, array_like=True):
    """What is known of a user: settled `counts`, K × 4 numbers in a row, and the steps that are still open."""

    number: int
    name: str
    version: int
    counts: list[int]
    open: list[Step]
    steps: int = 0
    last: int = -1  # the latest event
    seen: float = 0.0
    departed: bool = False
    before: int = -1  # the number under which they were known before they were taken for departed

    @property
    def categories(self) -> int:
        """How many categories there must be, by what was shown to them."""
        return max([-(-len(self.counts) // 4), *(step.category + 1 for step in self.open)])

    def counts_with_open(self, n_categories: int, unanswered: str, until: float = inf) -> Integers:
        """The counts `[K, 4]` to decide by, where open steps count as what they are taken for as yet.

        Open steps from the event `until` on are left out.
        """
        counts = np.zeros((n_categories, 4), np.int64)
        counts.reshape(-1)[: len(self.counts)] = self.counts
        for step in self.open:
            if step.event >= until:
                continue
            if step.clicked:
                counts[step.category, CLICK] += 1
            elif step.clicked is not None or unanswered == "no-click":
                counts[step.category, STAY] += 1
        return counts


def counts_to_learn_from(user: User, unanswered: str) -> list[int]:
    """The settled counts, and steps that were not answered before the user came back, for what they are taken for."""
    counts = user.counts
    for step in user.open:
        if step.clicked is None and step.event != user.last and unanswered == "no-click":
            if counts is user.counts:
                counts = list(counts)
            _add(counts, step.category, STAY)
    return counts


def come_back(user: User) -> None:
    """The user asks for something: they stayed after all steps that were answered."""
    for step in [step for step in user.open if step.clicked is not None]:
        _settle(user, step, CLICK if step.clicked else STAY)


def show(user: User, event: int, category: int, now: float, unanswered: str = "no-click") -> None:
    """The user is recommended something; of very many that were not answered the oldest are closed."""
    user.open.append(Step(event, category))
    if len(user.open) > MOST_OPEN:
        if unanswered == "no-click":
            _settle(user, user.open[0], STAY)
        else:
            del user.open[0]
    user.steps += 1
    user.last, user.seen = event, now


def answer(
    user: User, event: int, clicked: bool, departed: bool | None, now: float, unanswered: str = "no-click"
) -> bool:
    """The user clicked or not, and perhaps departed; whether that is news."""
    step = next((step for step in user.open if step.event == event), None)
    if step is None:
        raise RefusedError("closed")
    if step.clicked is not None:
        if step.clicked != clicked or (departed is not None and step.departed not in (None, departed)):
            raise RefusedError("contradiction")
        if departed is None or step.departed == departed:
            return False
    last = event == user.last
    if departed and not last:
        raise RefusedError("came back")
    step.clicked, step.departed = clicked, departed
    user.seen = max(user.seen, now)
    if departed:
        depart(user, unanswered)
    elif not last or departed is False:
        _settle(user, step, CLICK if clicked else STAY)
    return True


def depart(user: User, unanswered: str) -> None:
    """The user has gone for good; steps that were never answered are taken for what `unanswered` says."""
    for step in list(user.open):
        if step.clicked is not None or unanswered == "no-click":
            outcomes = (CLICK_DEPART, DEPART) if step.event == user.last else (CLICK, STAY)
            _settle(user, step, outcomes[0] if step.clicked else outcomes[1])
    user.open.clear()
    user.departed = True


def close(user: User, unanswered: str) -> None:
    """Nobody can come back as this user; what is known by now stays, and nothing says that they left."""
    user.counts = counts_to_learn_from(user, unanswered)
    user.open.clear()
    user.departed = True


def _settle(user: User, step: Step, outcome: int) -> None:
    _add(user.counts, step.category, outcome)
    user.open.remove(step)


def _add(counts: list[int], category: int, outcome: int) -> None:
    if 4 * category + outcome >= len(counts):
        counts.extend([0] * (4 * (category + 1) - len(counts)))
    counts[4 * category + outcome] += 1
