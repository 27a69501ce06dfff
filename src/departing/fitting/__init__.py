"""Estimation of an instance from histories."""
