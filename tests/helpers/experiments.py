"""Experiments of a service without HTTP, and simulated users in them."""

import asyncio
import random

import departing as dp
from departing.service import messages as m
from departing.service.experiments import messages as em
from departing.service.experiments.experiment import bucket
from helpers.services import publish, rows, run

SALT = "s"
GROUP = 50  # users who visit at the same time, so that their feedback shares commits


def with_versions(served):
    """Publish version 1, which shows sports, and version 2, which shows music; new users get version 1."""
    publish(served, dp.Fixed(1))
    publish(served, dp.Fixed(2))
    run(served.pin(1))


def start(experiments, treatment=2, **fields):
    return run(experiments.start(em.ExperimentStart(treatment, salt=SALT, **fields)))


def change(experiments, action, share=None, number=1, **fields):
    return run(experiments.change(str(number), em.ExperimentAction(action, share, **fields)))


def arm(user, share, holdout=0.0):
    """The arm of a user, by the documented function."""
    place = bucket(SALT, user)
    return "treatment" if place < share else "holdout" if place >= 1 - holdout else "control"


def stored(served, query):
    """Rows on disk, where SQLite writes with a short delay."""
    run(served.flush())
    return rows(served, query)


def readout(experiments, number=1):
    """The readout, read again whatever was read before."""
    experiments._readouts.clear()
    return run(experiments.readout(str(number)))


def metric(found, name="clicks_per_user"):
    return next(each for each in found.metrics if each.metric == name)


async def visit(served, user, click, stay, rng, shown=None):
    """Let a user visit: clicks and stays with probabilities by category; return the number of clicks.

    In shadow mode the caller shows a random category, with the probabilities `shown`.
    """
    clicks = 0
    while True:
        served.clock.time += 1e-4  # events of a user at the same time have no order in the log
        request = m.RecommendRequest(user)
        if served.rollout.state.shadow:
            request.shown = rng.choices(list(shown), list(shown.values()))[0]
            request.propensity = shown[request.shown]
        response = await served.recommend(request)
        clicked, departed = rng.random() < click[response.category], rng.random() >= stay[response.category]
        await served.feedback([m.Feedback(response.event, clicked, departed)])
        clicks += clicked
        if departed:
            return clicks


def visits(served, users, click, stay, seed=0, seconds=1.0, shown=None):
    """Let groups of users visit, each group `seconds` after the one before; users are independent of their order."""
    rngs = [random.Random(f"{seed} {user}") for user in users]

    async def group(start):
        pairs = zip(users[start : start + GROUP], rngs[start : start + GROUP], strict=True)
        await asyncio.gather(*(visit(served, user, click, stay, rng, shown) for user, rng in pairs))

    for start in range(0, len(users), GROUP):
        served.clock.time += seconds
        run(group(start))
