"""Load test of a running service: simulated users over many connections, and their regret."""
