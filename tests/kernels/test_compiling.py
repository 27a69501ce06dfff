import subprocess
import sys

import numba.core.caching as caching
import numpy as np

from departing.kernels.compiling import inner, kernel


def plus_one(x):
    return x + 1


def test_kernels_compile_where_no_cache_folder_is_writable(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert kernel(plus_one)(2) == 3


@inner
def add(x, y):
    return x + y


@kernel
def sum_of(numbers, more):
    total = 0
    for i in range(len(numbers)):
        total = add(total, numbers[i])
    return add(total, more) + add(1, 2)


def test_integers_of_all_kinds_share_one_specialisation():
    assert sum_of(np.arange(5, dtype=np.int32), 7) == 20
    assert len(add.signatures) <= 1  # none if the caller came from the cache


PLAN = """
import departing as dp
from departing.kernels.planning import alpha_vectors, search, upper_bound
dp.plan(dp.random_instance("uniform", 3, 3, seed=3002))
compiled = [upper_bound.cover, alpha_vectors.best_vector, alpha_vectors.backup_vector, search._make_vector]
print(max(len(each.signatures) for each in compiled))
"""


def test_kernels_of_the_planner_are_compiled_once():
    """Constants and entries of int32 arrays used to have specialisations of their own."""
    done = subprocess.run([sys.executable, "-c", PLAN], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= 1  # none if the caller came from the cache
