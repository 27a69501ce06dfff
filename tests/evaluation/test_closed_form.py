"""The assumption about NumPy's functions behind the bounds of the closed form."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from departing.evaluation.bounds import ROUNDING

EXACT = {
    np.exp: Decimal.exp,
    np.log: Decimal.ln,
    np.log1p: lambda x: (1 + x).ln(),
    np.expm1: lambda x: x.exp() - 1,
}
TINY, UNIT = (1e-20, 0.5), (1e-300, 1.0)


@pytest.mark.parametrize(
    ("function", "sign", "bounds"),
    [(np.exp, -1, (1e-20, 700.0)), (np.log, 1, UNIT), (np.log1p, -1, TINY), (np.expm1, -1, (1e-20, 700.0))],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_functions_have_at_most_two_roundings(function, sign, bounds):
    rng = np.random.default_rng(1)
    x = sign * np.concatenate([rng.uniform(*bounds, 1000), np.exp(rng.uniform(*np.log(bounds), 1000))])
    with localcontext(prec=50):
        for argument, value in zip(x.tolist(), function(x).tolist(), strict=True):
            exact = EXACT[function](Decimal(argument))
            assert abs(Decimal(value) - exact) <= 2 * Decimal(ROUNDING) * abs(exact)
