"""All claims in the order of the paper, and the statements that no computation can check."""

import inspect
import tomllib
from importlib import resources

from departing.paper import extensions, learning, planning, returns, setting  # noqa: F401 (these register checks)
from departing.paper.claim import CHECKS, Claim

_TEXTS = tomllib.loads(resources.files("departing.paper").joinpath("claims.toml").read_text(encoding="utf-8"))
CLAIMS = tuple(
    Claim(key, **texts, method=inspect.getdoc(CHECKS[key]) or "", check=CHECKS[key])
    for key, texts in _TEXTS["claims"].items()
)
EXTENSIONS = tuple(claim.key for claim in CLAIMS if claim.check.__module__ == extensions.__name__)
NOT_COMPUTABLE = [[row["source"], row["statement"], row["reason"]] for row in _TEXTS["not_computable"]]
