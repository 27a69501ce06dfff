"""Random streams: the integer after the seed in `numpy.random.default_rng([seed, stream, ...])`.

One seed thus gives every use its own random numbers. Equal integers occur where the uses exclude each other in one
call. Changing a value changes all results for a given seed.
"""

SIMULATE_STEPS = 0  # engine step: types and outcomes
SIMULATE_AGGREGATE = 1  # engine aggregate: numbers of users by type and outcome
SIMULATE_LEARNER = 2  # simulation of a learner: types and outcomes
LANES = 2  # engine lanes: numbers of users by type, and the root of the blocks' generators
LANES_LAST_CLICK = 3  # engine lanes: clicks at departure, by block
LANES_REMAINDER = 4  # engine lanes: users who leave the automaton, by batch
COMPARE = 5  # compare: types and outcomes, by batch
ARMS = 5  # engine arms: root of the generator
ARMS_EXIT = 6  # engine arms: a user who leaves the policy graph, by user
SAMPLE_LOG = 7  # sample_log: types, times, categories and outcomes
FIT_BOOTSTRAP = 5  # Fit.bootstrap: resamples
DECISION = 8  # decision: resamples of the users
FIT = 6  # fit: held-out users and random starts
LEARNER = 3  # learners with a model: posterior samples
LEARNER_MODE = 4  # learners with a model: starts of the mode, by number of arrived users
POWER = 8  # SampleSize.simulate: clicks of both arms
SEGMENTS = 10  # simulation under a policy: numbers of users by segment, and the seeds of the segments
SAMPLE_REWARDS = 11  # sample_log: rewards of clicks
LOWER_BOUND = 9  # regret_bound: starts of the search for alternatives
CONTINUED = 13  # simulation of a learner that has seen users: a seed in the place of that given
PIECES = 12  # simulation of a site that changes: the seeds of the pieces
