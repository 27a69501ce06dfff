"""Steps of a simulated log, as `Log.episodes` yields them."""

from types import SimpleNamespace

import numpy as np

import departing as dp

SITE = dp.Instance([0.6, 0.4], [[0.8, 0.3], [0.3, 0.7]], [[0.3, 0.6], [0.7, 0.4]], 0.02, categories=["news", "film"])


def episodes_of(log, pending=None):
    order = np.lexsort((log.time, log.user))
    user = log.user[order]
    time = log.time[order].astype(np.int64)
    return SimpleNamespace(
        user=user,
        category=log.category[order],
        outcome=log.outcome[order],
        pending=np.zeros(len(user), bool) if pending is None else pending[order],
        time=(time - time.min()) / (time.max() - time.min()),
    )
