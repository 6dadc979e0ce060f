from libc.stdint cimport int32_t, int64_t

from edgeonnx_ext._cut cimport Part


# One place of a template: a special token, or a sequence (SEQUENCE_A, SEQUENCE_B: negative).
cdef struct Piece:
    int64_t source
    int32_t type_id


cdef class Tokenized:
    cdef Part part
    cdef Piece* pieces
    cdef Py_ssize_t piece_count
    cdef Py_ssize_t specials
    cdef bint has_offsets
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t width

    cdef object take_template(self, const Piece* pieces, Py_ssize_t count, bint special_tokens)
    cdef Py_ssize_t length_of(self, Py_ssize_t row) noexcept nogil
    cdef void set_size(self) noexcept nogil
