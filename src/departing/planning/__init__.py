"""Instance in, best policy out, with a proof of how good it is."""
