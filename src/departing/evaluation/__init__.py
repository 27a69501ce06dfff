"""Instance and policy in, exact value out."""
