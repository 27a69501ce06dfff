"""Positions in the array `counters` of a search, which holds sizes, time stamps and flags."""

(
    NODES,
    EXPANDED,  # nodes with children
    POINTS,
    POINT_COLUMNS,  # points that scans read
    VECTORS,
    VECTOR_COLUMNS,  # vectors that scans read
    STAMP,  # number of backups so far
    POOL_STAMP,  # number of candidate pools so far
    SWEPT,  # expanded nodes at the last sweep over all nodes
    FULL,  # 1 when an array has to grow
    DEPTH,  # of the deepest node
    TRIALS,  # random numbers drawn by trials
) = range(12)
N_COUNTERS = 12
