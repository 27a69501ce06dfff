"""Many runs as data."""
