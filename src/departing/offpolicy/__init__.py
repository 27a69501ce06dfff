"""What another policy would have earned on a log."""
