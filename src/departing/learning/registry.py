"""The one list of learners: kind, module and class.

To add a learner, write a subclass of `LearnerBase` that declares `kind` and `options`, and add its line here. The
command line, studies, `load_learner` and the contract tests use this list. It imports nothing, so that `--help` does
not import numpy or numba.
"""

LEARNERS = {
    "bayes": "bayes.Bayes",
    "explore-then-commit": "explore_then_commit.ExploreThenCommit",
    "frozen": "frozen.Frozen",
    "kl-ulcb": "baselines.KLULCB",
    "lattice": "lattice.LatticeUCB",
    "oracle": "oracle.Oracle",
    "refitted-greedy": "refitted_greedy.RefittedGreedy",
    "sliding-window": "sliding_window.SlidingWindow",
    "thompson": "baselines.Thompson",
    "ucb-hybrid": "ucb.UCBHybrid",
    "ulcb": "baselines.ULCB",
    "uniform": "baselines.Uniform",
}
