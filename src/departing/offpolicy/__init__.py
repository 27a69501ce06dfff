"""Off-policy evaluation: value of a policy from the log of another."""
