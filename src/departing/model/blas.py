"""One thread for linear algebra on small matrices, where a thread of BLAS costs more than it computes."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

P = ParamSpec("P")
R = TypeVar("R")


def one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function use one thread of BLAS.

    The matrices of fits and learners have at most some hundred rows: a second thread doubles their CPU time, and
    changes the rounding of their sums.
    """

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
