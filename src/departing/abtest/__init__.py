"""A/B tests of policies: sample sizes before the experiment, the readout after it."""
