"""Lower bounds on the regret of every learner: a semi-infinite linear programme over instances and policies."""
