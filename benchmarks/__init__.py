"""Speed and size, as ratios to peers or limits measured in the same run."""
