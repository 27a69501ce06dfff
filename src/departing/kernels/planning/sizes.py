"""What a search counts: positions in its array `size`."""

NODES, EXPANDED, POINTS, COLUMNS, VECTORS, FLOORS, STAMP, POOL_STAMP, SWEPT, FULL, DEEPEST, TRIALS = range(12)
SIZES = 12
