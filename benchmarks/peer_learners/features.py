"""Features of capped counts, for peers that learn from vectors."""

import numpy as np

KINDS = ("linear", "log", "onehot", "joint")


def vectors(states, kind, hot=4):
    """Return the feature vectors `[S, d]` of all states, the first one constant.

    `linear` is the counts, `log` their log1p, `onehot` one indicator for every value of every count up to `hot`.
    """
    ones = np.ones((len(states), 1))
    if kind == "linear":
        return np.hstack([ones, states.digits])
    if kind == "log":
        return np.hstack([ones, np.log1p(states.digits)])
    values = np.minimum(states.digits, hot)
    return np.hstack([ones, *((values == v).astype(float) for v in range(1, hot + 1))])


def text(digits, kind, hot=4):
    """Return the features of one state in the text format of Vowpal Wabbit.

    `joint` is `onehot` and one indicator of all counts together, each count capped at `hot`.
    """
    if kind == "linear":
        return " ".join(f"c{i}:{v}" for i, v in enumerate(digits) if v)
    if kind == "log":
        return " ".join(f"c{i}:{np.log1p(v):.4f}" for i, v in enumerate(digits) if v)
    hots = [f"c{i}_{min(v, hot)}" for i, v in enumerate(digits)]
    return " ".join(hots if kind == "onehot" else [*hots, "j" + "_".join(str(min(v, hot)) for v in digits)])
