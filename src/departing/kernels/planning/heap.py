"""A binary heap of (key, item) with the largest key on top, in two arrays."""

from departing.kernels.compiling import kernel


@kernel
def heap_push(keys, items, size, key, item):
    """Put one in; the new size."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if keys[up] >= key:
            break
        keys[at], items[at] = keys[up], items[up]
        at = up
    keys[at], items[at] = key, item
    return size + 1


@kernel
def heap_pop(keys, items, size):
    """Move the top to position `size - 1`, behind the heap; the new size."""
    last = size - 1
    top_key, top_item = keys[0], items[0]
    key, item = keys[last], items[last]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        if down + 1 < last and keys[down + 1] > keys[down]:
            down += 1
        if keys[down] <= key:
            break
        keys[at], items[at] = keys[down], items[down]
        at = down
    keys[at], items[at] = key, item
    keys[last], items[last] = top_key, top_item
    return last
