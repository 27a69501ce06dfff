"""Policies: counts in, categories out; no state and no randomness."""
