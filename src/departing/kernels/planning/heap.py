"""A binary max-heap of (key, item) in two arrays."""

from departing.kernels.compiling import kernel


@kernel
def heap_push(keys, items, size, key, item):
    """Insert an item; return the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if keys[parent] >= key:
            break
        keys[at], items[at] = keys[parent], items[parent]
        at = parent
    keys[at], items[at] = key, item
    return size + 1


@kernel
def heap_pop(keys, items, size):
    """Move the item of largest key to position `size - 1`, behind the heap; return the new size."""
    last = size - 1
    top_key, top_item = keys[0], items[0]
    key, item = keys[last], items[last]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and keys[child + 1] > keys[child]:
            child += 1
        if keys[child] <= key:
            break
        keys[at], items[at] = keys[child], items[child]
        at = child
    keys[at], items[at] = key, item
    keys[last], items[last] = top_key, top_item
    return last
