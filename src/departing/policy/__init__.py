"""Policies: counts to categories, without state and without randomness."""
