"""Inner kernels are optimised with the kernels that call them, with the same results."""

import numpy as np
import pytest

from departing.kernels import compiling, deferred


def _halved(values, i):
    return values[i] / 2


def _sum_of_halves(halved):
    def total(values, n):
        result = 0.0
        for i in range(n):
            result += halved(values, i)
        return result

    return total


@pytest.mark.parametrize("supported", [True, False])
def test_inner_kernels_give_the_same_results_where_numba_lacks_internals(monkeypatch, supported):
    monkeypatch.setattr(deferred, "SUPPORTED", supported and deferred.SUPPORTED)
    inner = compiling.inner(_halved)
    total = compiling.search_kernel(_sum_of_halves(inner))
    values = np.random.default_rng(0).random(1000)
    assert total(values, len(values)) == pytest.approx(values.sum() / 2, rel=1e-12)
    code = next(iter(inner.overloads.values())).library
    assert isinstance(code, deferred._InnerCode) == deferred.SUPPORTED


def test_called_functions_are_linked_once():
    inner = compiling.inner(_halved)
    twice = compiling.inner(_twice_as_much(inner))
    total = compiling.search_kernel(_both(inner, twice))
    assert total(np.arange(4.0), 3) == 1.5 + 3.0
    codes = [next(iter(each.overloads.values())).library for each in (inner, twice, total)]
    assert codes[0] in codes[1].called
    assert codes[2]._linking_libraries.count(codes[0]) == 1


def _twice_as_much(halved):
    def double(values, i):
        return 2 * halved(values, i)

    return double


def _both(halved, double):
    def total(values, i):
        return halved(values, i) + double(values, i)

    return total
