"""Users and their types as data."""
