"""Decisions from a fit: a recommended policy, its expected clicks, and the uncertainty of both."""
