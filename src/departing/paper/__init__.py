"""Items of the paper and extensions, with verdicts and checks."""
