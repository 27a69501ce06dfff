"""From the outside world to histories and instances."""
