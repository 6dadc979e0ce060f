"""Compiled scores: softmax, sigmoid, the largest. `reference/scores.py` documents arguments and errors.

`argmax_into` is the plain one in both: NumPy's argmax is vector code that a kernel does not beat.
"""

from libc.math cimport INFINITY, NAN, fabsf, log
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from edgeonnx_ext import _checks_scores
from edgeonnx_ext.reference import scores

from edgeonnx_ext._select cimport Item, block_count, block_maxima, largest_items, sort_heap
from edgeonnx_ext._vectors cimport exp_into, maximum_of, sum_of


cdef bint has_no_softmax(float maximum, bint has_nan) noexcept nogil:
    """Whether the formula gives NaN for the whole row."""
    return has_nan or maximum == INFINITY or maximum == -INFINITY


cdef void fill(float* out, Py_ssize_t count, float value) noexcept nogil:
    cdef Py_ssize_t column
    for column in range(count):
        out[column] = value


cdef void softmax_row(const float* x, Py_ssize_t count, float* out) noexcept nogil:
    cdef int has_nan = False
    cdef float maximum = maximum_of(x, count, &has_nan)
    cdef float scale
    cdef Py_ssize_t column
    if has_no_softmax(maximum, has_nan):
        fill(out, count, NAN)
        return
    exp_into(x, count, maximum, 1.0, out)
    scale = <float> (1.0 / sum_of(out, count))
    for column in range(count):
        out[column] *= scale


cdef void log_softmax_row(const float* x, Py_ssize_t count, float* out) noexcept nogil:
    cdef int has_nan = False
    cdef float maximum = maximum_of(x, count, &has_nan)
    cdef float[256] weights
    cdef double total = 0.0
    cdef Py_ssize_t column = 0, size
    if has_no_softmax(maximum, has_nan):
        fill(out, count, NAN)
        return
    while column < count:
        size = min(<Py_ssize_t> 256, count - column)
        exp_into(x + column, size, maximum, 1.0, weights)
        total += sum_of(weights, size)
        column += 256
    total = log(total)
    for column in range(count):
        # In this order: a large maximum would swallow the logarithm.
        out[column] = <float> ((<double> x[column] - maximum) - total)


cdef void sigmoid_row(const float* x, Py_ssize_t count, float* out) noexcept nogil:
    cdef float[256] weights
    cdef float[256] magnitudes
    cdef Py_ssize_t start = 0, size, index
    cdef float value, one = 1.0
    while start < count:
        size = min(<Py_ssize_t> 256, count - start)
        for index in range(size):
            magnitudes[index] = -fabsf(x[start + index])  # of |x|, so that it cannot overflow
        exp_into(magnitudes, size, 0.0, 1.0, weights)
        for index in range(size):
            value = x[start + index]
            out[start + index] = (one if value >= 0.0 else weights[index]) / (one + weights[index])
        start += 256


argmax_into = scores.argmax_into


ctypedef void (*RowFunction)(const float* x, Py_ssize_t count, float* out) noexcept nogil


cdef object write_rows(x, out, RowFunction function):
    _checks_scores.elementwise_buffers(x, out)
    if x.size == 0:
        return
    cdef const float[:, ::1] x_view = x
    cdef float[:, ::1] out_view = out
    cdef Py_ssize_t row
    with nogil:
        for row in range(x_view.shape[0]):
            function(&x_view[row, 0], x_view.shape[1], &out_view[row, 0])


def softmax_into(x, out):
    """Write exp(x) / sum(exp(x)) of each row."""
    write_rows(x, out, softmax_row)


def log_softmax_into(x, out):
    """Write x - log(sum(exp(x))) of each row."""
    write_rows(x, out, log_softmax_row)


def sigmoid_into(x, out):
    """Write 1 / (1 + exp(-x))."""
    write_rows(x, out, sigmoid_row)


cdef void top_k_row(
    const float* x, Py_ssize_t columns, Py_ssize_t k, float* maxima, Item* items, float* values, int64_t* indices
) noexcept nogil:
    cdef int has_nan = False
    cdef Py_ssize_t place
    block_maxima(x, columns, maxima, &has_nan)
    largest_items(x, columns, maxima, items, k)
    sort_heap(items, k)
    for place in range(k):
        values[place] = items[place].value
        indices[place] = items[place].index


def top_k_into(x, k, values, indices):
    """Write the k largest of each row, the largest first; of equal ones the lower index first."""
    cdef Py_ssize_t number = _checks_scores.top_k_buffers(x, k, values, indices)
    if x.shape[0] == 0:
        return
    cdef const float[:, ::1] x_view = x
    cdef float[:, ::1] values_view = values
    cdef int64_t[:, ::1] indices_view = indices
    cdef Py_ssize_t row, rows = x_view.shape[0], columns = x_view.shape[1]
    cdef int has_nan = False
    cdef float* maxima = NULL
    cdef Item* items = NULL
    with nogil:
        maximum_of(&x_view[0, 0], rows * columns, &has_nan)
        if not has_nan:
            maxima = <float*> malloc(<size_t> block_count(columns) * sizeof(float))
            items = <Item*> malloc(<size_t> number * sizeof(Item))
        if maxima != NULL and items != NULL:
            for row in range(rows):
                top_k_row(&x_view[row, 0], columns, number, maxima, items, &values_view[row, 0], &indices_view[row, 0])
        free(maxima)
        free(items)
    if has_nan:
        _checks_scores.raise_nan(x)
    if maxima == NULL or items == NULL:
        raise MemoryError
