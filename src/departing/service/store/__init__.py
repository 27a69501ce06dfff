"""Durable state of the service, in SQLite or PostgreSQL."""
