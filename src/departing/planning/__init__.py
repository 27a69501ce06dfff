"""Planning: an instance to a policy with certified bounds on its value."""
