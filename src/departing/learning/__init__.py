"""Learners: they recommend, see what happens, and recommend better."""
