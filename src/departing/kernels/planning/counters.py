"""Positions in the array `counters` of a search, which holds sizes, time stamps and flags.

NODES, EXPANDED (nodes with children), POINTS, POINT_COLUMNS (points that scans read), VECTORS, VECTOR_COLUMNS
(vectors that scans read), STAMP (backups so far), POOL_STAMP (candidate pools so far), SWEPT (expanded nodes at the
last sweep over all nodes), FULL (1 when an array has to grow), DEPTH (of the deepest node), TRIALS (random numbers
drawn), RESTARTED (1 in a search with points of faces), RECOMPUTED (leaves whose gap new bounds reduced instead of
children).
"""

N_COUNTERS = 14
NODES, EXPANDED, POINTS, POINT_COLUMNS, VECTORS, VECTOR_COLUMNS, *_REST = range(N_COUNTERS)
STAMP, POOL_STAMP, SWEPT, FULL, DEPTH, TRIALS, RESTARTED, RECOMPUTED = _REST
