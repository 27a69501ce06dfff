"""Compiled functions, grouped by the package they serve: arrays in, arrays out; no imports from the package."""
