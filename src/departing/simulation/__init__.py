"""Instance and policy in, a run of many users out."""
