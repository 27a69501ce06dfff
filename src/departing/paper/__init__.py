"""The claims of the paper and what was found beyond it, each with a check that anybody can run."""
