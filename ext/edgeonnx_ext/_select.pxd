# The largest numbers of a row without sorting it.
#
# A row is cut into blocks of MAX_BLOCK numbers, and the maximum of each is taken in one pass of vector instructions; a
# block whose maximum is too small is not looked at again.

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy, memset

from edgeonnx_ext._vectors cimport maximum_of


cdef enum:
    MAX_BLOCK = 64
    BINS = 2048


cdef inline Py_ssize_t block_count(Py_ssize_t count) noexcept nogil:
    return (count + MAX_BLOCK - 1) // MAX_BLOCK


cdef inline Py_ssize_t block_size(Py_ssize_t count, Py_ssize_t block) noexcept nogil:
    """Numbers in a block: MAX_BLOCK, or fewer in the last."""
    return min(<Py_ssize_t> MAX_BLOCK, count - block * MAX_BLOCK)


cdef inline float block_maxima(const float* x, Py_ssize_t count, float* maxima, int* has_nan) noexcept nogil:
    """Write the maximum of each block, and return the largest; sets `has_nan` if there is a NaN."""
    cdef Py_ssize_t block
    cdef float top = -INFINITY
    for block in range(block_count(count)):
        maxima[block] = maximum_of(x + block * MAX_BLOCK, block_size(count, block), has_nan)
        top = maxima[block] if maxima[block] > top else top
    return top


cdef struct Item:
    float value
    int64_t index


cdef inline bint is_better(const Item* a, const Item* b) noexcept nogil:
    """The larger value, and of equal ones the lower index."""
    return a.value > b.value or (a.value == b.value and a.index < b.index)


cdef inline void sink(Item* heap, Py_ssize_t size, Py_ssize_t place) noexcept nogil:
    """Restore the heap, in which no item is better than its children, below a place."""
    cdef Item item = heap[place]
    cdef Py_ssize_t child = 2 * place + 1
    while child < size:
        if child + 1 < size and is_better(&heap[child], &heap[child + 1]):
            child += 1
        if not is_better(&item, &heap[child]):
            break
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    heap[place] = item


cdef inline void largest_items(
    const float* x, Py_ssize_t count, const float* maxima, Item* heap, Py_ssize_t k
) noexcept nogil:
    """Make a heap of the k best items of x, 1 <= k <= count; heap[0] is the worst of them."""
    cdef Py_ssize_t index, block, end
    for index in range(k):
        heap[index].value = x[index]
        heap[index].index = index
    for index in range(k // 2 - 1, -1, -1):
        sink(heap, k, index)
    index = k
    while index < count:
        block = index // MAX_BLOCK
        end = min(count, (block + 1) * MAX_BLOCK)
        if maxima[block] > heap[0].value:
            for index in range(index, end):
                if x[index] > heap[0].value:
                    heap[0].value = x[index]
                    heap[0].index = index
                    sink(heap, k, 0)
        index = end


cdef inline void sort_heap(Item* heap, Py_ssize_t k) noexcept nogil:
    """Sort the heap, the best item first."""
    cdef Py_ssize_t size
    cdef Item worst
    for size in range(k - 1, 0, -1):
        worst = heap[0]
        heap[0] = heap[size]
        heap[size] = worst
        sink(heap, size, 0)


cdef inline uint32_t key_of(float value) noexcept nogil:
    """An integer that orders as the number does; both zeros have one key."""
    cdef uint32_t bits
    value += 0.0  # -0.0 becomes 0.0
    memcpy(&bits, &value, sizeof(bits))
    return ~bits if bits >> 31 else bits | 0x80000000u


cdef inline float number_of(uint32_t key) noexcept nogil:
    """The number of a key."""
    cdef uint32_t bits = key & 0x7FFFFFFFu if key >> 31 else ~key
    cdef float value
    memcpy(&value, &bits, sizeof(value))
    return value


cdef inline int shift_of(uint32_t span) noexcept nogil:
    """The smallest shift that brings `span` into the bins."""
    cdef int shift = 0
    while span >> shift >= BINS:
        shift += 1
    return shift


cdef struct Edge:
    float value
    double above  # mass of the numbers that are larger


cdef inline Edge find_edge(
    const float* values, const float* weights, Py_ssize_t count, double target, double* bins
) noexcept nogil:
    """Find the largest number for which the mass of all numbers from it upward reaches `target`.

    A radix search: the range of keys is cut into bins, the masses of the bins are added from above until `target` is
    reached, and the search goes on in that bin; three passes at most, whatever the numbers. If all of them do not
    reach `target`, the edge is at most the smallest number.

    Args:
        values: (count,), at least one, no NaN.
        weights: (count,), the mass of each, not negative.
        count: Number of values.
        target: More than 0.
        bins: Work memory of BINS numbers.
    """
    cdef uint32_t low = 0xFFFFFFFFu, high = 0, key
    cdef Py_ssize_t index, bin
    cdef int shift
    cdef Edge edge
    edge.above = 0.0
    for index in range(count):
        key = key_of(values[index])
        low = min(low, key)
        high = max(high, key)
    while low < high:
        shift = shift_of(high - low)
        memset(bins, 0, BINS * sizeof(double))
        for index in range(count):
            key = key_of(values[index])
            if low <= key <= high:
                bins[(key - low) >> shift] += weights[index]
        bin = <Py_ssize_t> ((high - low) >> shift)
        while bin > 0 and edge.above + bins[bin] < target:
            edge.above += bins[bin]
            bin -= 1
        low += <uint32_t> bin << shift
        high = min(high, low + ((<uint32_t> 1 << shift) - 1))
    edge.value = number_of(low)
    return edge
