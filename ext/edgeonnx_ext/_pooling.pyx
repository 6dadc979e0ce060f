"""Compiled pooling and normalization, with the GIL released. `reference/pooling.py` documents arguments and errors.

The inner loops run over columns with plain pointers, and sum four tokens a pass, so that the compiler makes vector
instructions of them and each column's sum is loaded and stored once for four tokens.
"""

from libc.math cimport INFINITY, sqrt
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from edgeonnx_ext import _checks_pooling


cdef enum Mean:
    PLAIN
    OVER_SQUARE_ROOT
    BY_POSITION


cdef struct Work:
    double* sums  # (dim,)
    double* weights  # (tokens,), of the unmasked tokens
    Py_ssize_t* places  # (tokens,), where they stand


cdef bint open_work(Work* work, Py_ssize_t tokens, Py_ssize_t dim) noexcept nogil:
    """False if there is no memory; `close_work` either way."""
    work.sums = <double*> malloc(<size_t> dim * sizeof(double))
    work.weights = <double*> malloc(<size_t> tokens * sizeof(double))
    work.places = <Py_ssize_t*> malloc(<size_t> tokens * sizeof(Py_ssize_t))
    return work.sums != NULL and work.weights != NULL and work.places != NULL


cdef void close_work(Work* work) noexcept nogil:
    free(work.sums)
    free(work.weights)
    free(work.places)


cdef Py_ssize_t find_tokens(const int64_t* mask, Py_ssize_t tokens, bint by_position, Work* work) noexcept nogil:
    """Fill places and weights (1, or counted up from the first unmasked token); return how many tokens are unmasked."""
    cdef Py_ssize_t token, count = 0
    for token in range(tokens):
        if mask[token]:
            work.places[count] = token
            work.weights[count] = <double> (token - work.places[0] + 1) if by_position else 1.0
            count += 1
    return count


cdef void add_four(
    double* sums, const float* a, const float* b, const float* c, const float* d, const double* weights, Py_ssize_t dim
) noexcept nogil:
    cdef double wa = weights[0], wb = weights[1], wc = weights[2], wd = weights[3]
    cdef Py_ssize_t column
    for column in range(dim):
        sums[column] += (wa * a[column] + wb * b[column]) + (wc * c[column] + wd * d[column])


cdef void add_one(double* sums, const float* a, double weight, Py_ssize_t dim) noexcept nogil:
    cdef Py_ssize_t column
    for column in range(dim):
        sums[column] += weight * a[column]


cdef void mean_of_row(
    const float* hidden, Py_ssize_t count, Py_ssize_t dim, Mean kind, Work* work, float* out
) noexcept nogil:
    cdef const Py_ssize_t* places = work.places
    cdef Py_ssize_t index = 0, column
    cdef double total = 0.0
    memset(work.sums, 0, <size_t> dim * sizeof(double))
    while index + 4 <= count:
        add_four(
            work.sums,
            hidden + places[index] * dim,
            hidden + places[index + 1] * dim,
            hidden + places[index + 2] * dim,
            hidden + places[index + 3] * dim,
            work.weights + index,
            dim,
        )
        index += 4
    while index < count:
        add_one(work.sums, hidden + places[index] * dim, work.weights[index], dim)
        index += 1
    for index in range(count):
        total += work.weights[index]
    total = max(total, 1e-9)
    if kind == OVER_SQUARE_ROOT:
        total = sqrt(total)
    for column in range(dim):
        out[column] = <float> (work.sums[column] / total)


cdef void mean_into(const float* hidden, const int64_t* mask, float* out,
                    const Py_ssize_t* shape, Mean kind, Work* work) noexcept nogil:
    cdef Py_ssize_t row, count, tokens = shape[1], dim = shape[2]
    for row in range(shape[0]):
        count = find_tokens(mask + row * tokens, tokens, kind == BY_POSITION, work)
        mean_of_row(hidden + row * tokens * dim, count, dim, kind, work, out + row * dim)


cdef object write_means(hidden, mask, out, Mean kind):
    _checks_pooling.pooling_buffers(hidden, mask, out)
    if hidden.size == 0:
        out.fill(0.0)
        return
    cdef const float[:, :, ::1] hidden_view = hidden
    cdef const int64_t[:, ::1] mask_view = mask
    cdef float[:, ::1] out_view = out
    cdef Work work
    cdef bint opened
    with nogil:
        opened = open_work(&work, hidden_view.shape[1], hidden_view.shape[2])
        if opened:
            mean_into(&hidden_view[0, 0, 0], &mask_view[0, 0], &out_view[0, 0], hidden_view.shape, kind, &work)
        close_work(&work)
    if not opened:
        raise MemoryError


def masked_mean_into(hidden, mask, out):
    """Write the mean of each row's unmasked token vectors: sum / max(count, 1e-9)."""
    write_means(hidden, mask, out, PLAIN)


def masked_mean_sqrt_into(hidden, mask, out):
    """Write each row's sum of unmasked token vectors over the square root of their number."""
    write_means(hidden, mask, out, OVER_SQUARE_ROOT)


def masked_weighted_mean_into(hidden, mask, out):
    """Write the mean of each row's unmasked token vectors, each weighted by its position."""
    write_means(hidden, mask, out, BY_POSITION)


cdef void max_of_row(const float* hidden, const int64_t* mask, Py_ssize_t tokens, Py_ssize_t dim,
                     float* out) noexcept nogil:
    cdef Py_ssize_t token, column
    cdef const float* vector
    cdef float value
    for column in range(dim):
        out[column] = -INFINITY
    for token in range(tokens):
        if mask[token]:
            vector = hidden + token * dim
            for column in range(dim):
                value = vector[column]
                # A NaN replaces any number, and no number replaces a NaN.
                out[column] = value if value > out[column] or value != value else out[column]


cdef void first_of_row(const float* hidden, const int64_t* mask, Py_ssize_t tokens, Py_ssize_t dim,
                       float* out) noexcept nogil:
    cdef Py_ssize_t token = 0
    while token < tokens and mask[token] == 0:
        token += 1
    memcpy(out, hidden + (token if token < tokens else 0) * dim, <size_t> dim * sizeof(float))


cdef void last_of_row(const float* hidden, const int64_t* mask, Py_ssize_t tokens, Py_ssize_t dim,
                      float* out) noexcept nogil:
    cdef Py_ssize_t token = tokens - 1
    while token >= 0 and mask[token] == 0:
        token -= 1
    if token >= 0:
        memcpy(out, hidden + token * dim, <size_t> dim * sizeof(float))
    else:
        memset(out, 0, <size_t> dim * sizeof(float))


ctypedef void (*PoolRow)(const float*, const int64_t*, Py_ssize_t, Py_ssize_t, float*) noexcept nogil


cdef object pool_rows(hidden, mask, out, PoolRow pool, float empty):
    """Pool each row on its own; `empty` fills `out` where there is nothing to pool."""
    _checks_pooling.pooling_buffers(hidden, mask, out)
    if hidden.size == 0:
        out.fill(empty)
        return
    cdef const float[:, :, ::1] hidden_view = hidden
    cdef const int64_t[:, ::1] mask_view = mask
    cdef float[:, ::1] out_view = out
    cdef Py_ssize_t row, tokens = hidden_view.shape[1], dim = hidden_view.shape[2]
    with nogil:
        for row in range(hidden_view.shape[0]):
            pool(&hidden_view[row, 0, 0], &mask_view[row, 0], tokens, dim, &out_view[row, 0])


def masked_max_into(hidden, mask, out):
    """Write the largest value of each column over each row's unmasked tokens."""
    pool_rows(hidden, mask, out, max_of_row, -INFINITY)


def first_token_into(hidden, mask, out):
    """Write the vector of each row's first unmasked token."""
    pool_rows(hidden, mask, out, first_of_row, 0.0)


def last_token_into(hidden, mask, out):
    """Write the vector of each row's last unmasked token."""
    pool_rows(hidden, mask, out, last_of_row, 0.0)


cdef double sum_of_squares(const float* x, Py_ssize_t count) noexcept nogil:
    # Eight sums side by side: one sum alone would chain every addition to the one before.
    cdef double[8] sums
    cdef Py_ssize_t start = 0, lane
    cdef double value, total = 0.0
    for lane in range(8):
        sums[lane] = 0.0
    while start + 8 <= count:
        for lane in range(8):
            value = x[start + lane]
            sums[lane] += value * value
        start += 8
    for lane in range(8):
        total += sums[lane]
    while start < count:
        value = x[start]
        total += value * value
        start += 1
    return total


cdef void normalize_row(const float* x, Py_ssize_t count, float* out) noexcept nogil:
    cdef Py_ssize_t column
    cdef double norm = sqrt(sum_of_squares(x, count))
    if norm < 1e-12:  # not max(): a NaN must stay one
        norm = 1e-12
    for column in range(count):
        out[column] = <float> (x[column] / norm)


def l2_normalize_into(x, out):
    """Write x / max(||x||, 1e-12) of each row, the formula of torch.nn.functional.normalize (p=2, dim=1)."""
    _checks_pooling.normalize_buffers(x, out)
    if x.size == 0:
        return
    cdef const float[:, ::1] x_view = x
    cdef float[:, ::1] out_view = out
    cdef Py_ssize_t row
    with nogil:
        for row in range(x_view.shape[0]):
            normalize_row(&x_view[row, 0], x_view.shape[1], &out_view[row, 0])
