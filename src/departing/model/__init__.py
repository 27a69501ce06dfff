"""Model: instances, counts, beliefs, histories, and checks of input."""
