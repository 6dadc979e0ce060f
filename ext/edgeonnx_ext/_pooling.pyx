"""Compiled pooling and normalization, with the GIL released. `_reference.py` documents arguments and errors."""

from libc.math cimport sqrt
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from edgeonnx_ext import _checks


cdef void mean_of_row(const float[:, ::1] hidden, const int64_t[::1] mask, float[::1] out, double* sums) noexcept nogil:
    cdef Py_ssize_t token, column, count = 0
    for column in range(hidden.shape[1]):
        sums[column] = 0.0
    for token in range(hidden.shape[0]):
        if mask[token]:
            count += 1
            for column in range(hidden.shape[1]):
                sums[column] += hidden[token, column]
    for column in range(hidden.shape[1]):
        out[column] = <float> (sums[column] / max(<double> count, 1e-9))


def masked_mean_into(hidden, mask, out):
    """Write the mean of each row's unmasked token vectors: sum / max(count, 1e-9)."""
    _checks.mean_buffers(hidden, mask, out)
    cdef const float[:, :, ::1] hidden_view = hidden
    cdef const int64_t[:, ::1] mask_view = mask
    cdef float[:, ::1] out_view = out
    cdef Py_ssize_t row
    cdef double* sums = <double*> malloc((out_view.shape[1] + 1) * sizeof(double))
    if sums == NULL:
        raise MemoryError
    with nogil:
        for row in range(hidden_view.shape[0]):
            mean_of_row(hidden_view[row], mask_view[row], out_view[row], sums)
        free(sums)


cdef void normalize_row(const float[::1] x, float[::1] out) noexcept nogil:
    cdef Py_ssize_t column
    cdef double norm = 0.0
    for column in range(x.shape[0]):
        norm += <double> x[column] * x[column]
    norm = sqrt(norm)
    if norm < 1e-12:  # not max(): a NaN must stay one
        norm = 1e-12
    for column in range(x.shape[0]):
        out[column] = <float> (x[column] / norm)


def l2_normalize_into(x, out):
    """Write x / max(||x||, 1e-12) of each row, the formula of torch.nn.functional.normalize (p=2, dim=1)."""
    _checks.normalize_buffers(x, out)
    cdef const float[:, ::1] x_view = x
    cdef float[:, ::1] out_view = out
    cdef Py_ssize_t row
    with nogil:
        for row in range(x_view.shape[0]):
            normalize_row(x_view[row], out_view[row])
