"""From the outside world to histories and instances: event logs and ratings."""
