"""Sections of the page of a report, in HTML."""
