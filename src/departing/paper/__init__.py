"""Claims of the paper and extensions, each with a check."""
