"""All claims in the order of the paper, and the statements that no computation can check."""

from departing.paper import extensions, learning, planning, returns, setting  # noqa: F401 (these register claims)
from departing.paper.claim import REGISTRY, Claim

# Sections 2 to 5, appendices A and B, section 6 and extensions.
_ORDER = """
    protocol first-step example-gaps example-switch linear
    algorithm general-regret bernstein
    best-category recurrence geometric geometric-moments length-moments mean-return return-moments return-scale
    one-type
    belief bellman walk partition row column switching-condition most-switches diagonal constant-time size-of-set
    horizon threshold-scale two-by-two
    recursion recursion-time recursion-error movielens
    two-categories how-often constants open-problems planning-gain after-clicks
"""
CLAIMS: tuple[Claim, ...] = tuple(REGISTRY[key] for key in _ORDER.split())
EXTENSIONS = tuple(claim.key for claim in CLAIMS if claim.check.__module__ == extensions.__name__)
NOT_COMPUTABLE = (
    (
        "Section 2, regret",
        "Regret is the expected clicks of the optimal policy on T users, minus the clicks of the learner.",
        "Definition. All regret on this page follows it, with exact values of the policies.",
    ),
    (
        "Section 2, footnote",
        "Deterministic policies suffice.",
        "The value of a randomised policy is the mean of the values of deterministic ones; nothing to compute.",
    ),
    (
        "Section 3, definition",
        "Sub-exponential random variables, and two equivalent properties.",
        "Definition. The moment property and the moment condition are checked where the paper uses them.",
    ),
    (
        "Section 5.1",
        "The problem is a partially observable Markov decision process, and policies are functions of beliefs.",
        "Formulation. The Bellman equation of the values is checked.",
    ),
    (
        "Section 5.1 and 5.3, definitions",
        "Belief-category walks and threshold policies.",
        "Definitions. The value of a walk and the number of threshold policies are checked.",
    ),
    (
        "Section 5.1, remark",
        "Categories and types may be relabelled so that the first entry is the largest.",
        "Convention. It is checked that every relabelling it allows gives exactly one structure.",
    ),
)
