"""All claims in the order of the paper, and the statements that no computation can check."""

from departing.paper import extensions, learning, planning, returns, setting
from departing.paper.claim import Claim

ORDER = (
    "protocol",
    "first-step",
    "example-gaps",
    "example-switch",
    "linear",  # section 2
    "algorithm",
    "general-regret",
    "bernstein",  # 3
    "best-category",
    "recurrence",
    "geometric",
    "geometric-moments",
    "length-moments",
    "mean-return",
    "return-moments",
    "return-scale",
    "one-type",  # 4
    "belief",
    "bellman",
    "walk",
    "partition",
    "row",
    "column",
    "switching-condition",
    "most-switches",
    "diagonal",
    "constant-time",
    "size-of-set",
    "horizon",
    "threshold-scale",
    "two-by-two",  # 5
    "recursion",
    "recursion-time",
    "recursion-error",
    "movielens",  # appendices A and B
    "two-categories",
    "how-often",
    "constants",
    "open-problems",
    "myopia",
    "after-clicks",  # section 6 and beyond
)
BEYOND = tuple(claim.key for claim in extensions.CLAIMS)
_ALL = {claim.key: claim for module in (setting, returns, planning, learning, extensions) for claim in module.CLAIMS}
CLAIMS: tuple[Claim, ...] = tuple(_ALL[key] for key in ORDER)
NOT_CHECKED = (
    (
        "Section 2, regret",
        "Regret is what the best policy earns with T users, less what the learner earns.",
        "A definition. All regret in these pages is computed by it, with exact values of the policies.",
    ),
    (
        "Section 2, footnote",
        "Deterministic policies are enough.",
        "A policy that draws lots is worth the mean of those it draws from; there is nothing to compute.",
    ),
    (
        "Section 3, definition",
        "Sub-exponential numbers, and two properties that are equivalent to that.",
        "A definition. The property on moments and the moment condition are checked where the paper uses them.",
    ),
    (
        "Section 5.1",
        "The problem is a partially observed Markov decision process, and policies are functions of beliefs.",
        "A way of looking at it. That values follow the Bellman equation is checked.",
    ),
    (
        "Section 5.1 and 5.3, definitions",
        "Belief-category walks and threshold policies.",
        "Definitions. The value of a walk and the number of threshold policies are checked.",
    ),
    (
        "Section 5.1, remark",
        "Categories and types may be relabelled so that the first entry is the largest.",
        "A convention. That every labelling it allows gives one structure is checked.",
    ),
)
