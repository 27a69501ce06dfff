"""Plots of plans."""
