"""Default limits of a service, without dependencies: `departing serve --help` shows them without the extra."""

# Active users whom a store of 1 GB holds, at 450 bytes each with one recommendation: callers who invent users cannot
# fill the disk. Memory does not depend on it.
MAX_USERS = 2_000_000
