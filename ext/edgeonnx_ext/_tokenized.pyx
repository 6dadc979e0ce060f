"""Compiled rows of a batch: ragged ids in C memory, and those into the caller's buffers, with the GIL released.

See `reference/rows.py` for arguments and errors.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np

from edgeonnx_ext import _checks_rows
from edgeonnx_ext.layout import Padding
from edgeonnx_ext.templates import SEQUENCE_A as PY_SEQUENCE_A

from edgeonnx_ext._cut cimport free_part


cdef int64_t SEQUENCE_A = PY_SEQUENCE_A

ctypedef fused id_t:
    int32_t
    int64_t


cdef class Tokenized:
    """The rows of a batch, ragged, in C memory; made by `Tokenizer.tokenize`. See `reference/rows.py`."""

    def __dealloc__(self):
        free_part(&self.part)
        free(self.pieces)

    cdef object take_template(self, const Piece* pieces, Py_ssize_t count, bint special_tokens):
        """Copy the template, without its special tokens if they are not wanted."""
        cdef Py_ssize_t index
        self.pieces = <Piece*> malloc((count + 1) * sizeof(Piece))
        if self.pieces == NULL:
            raise MemoryError
        for index in range(count):
            if pieces[index].source < 0 or special_tokens:
                self.pieces[self.piece_count] = pieces[index]
                self.piece_count += 1
                self.specials += pieces[index].source >= 0

    cdef Py_ssize_t length_of(self, Py_ssize_t row) noexcept nogil:
        return self.specials + self.part.rows[row].count[0] + self.part.rows[row].count[1]

    cdef void set_size(self) noexcept nogil:
        cdef Py_ssize_t row
        self.rows = self.part.row_count
        for row in range(self.rows):
            self.width = max(self.width, self.length_of(row))

    @property
    def lengths(self):
        """A new int64 array (rows,): tokens of each row, special tokens included, after truncation."""
        lengths = np.empty(self.rows, dtype=np.int64)
        cdef int64_t[::1] view = lengths
        cdef Py_ssize_t row
        for row in range(self.rows):
            view[row] = self.length_of(row)
        return lengths

    @property
    def sources(self):
        """A new int64 array (rows,): the text (or pair) that each row comes from."""
        sources = np.empty(self.rows, dtype=np.int64)
        cdef int64_t[::1] view = sources
        cdef Py_ssize_t row
        for row in range(self.rows):
            view[row] = self.part.rows[row].source
        return sources

    def order_by_length(self):
        """A new int64 array (rows,): the rows from longest to shortest, equal ones in the given order."""
        return np.argsort(-self.lengths, kind="stable").astype(np.int64)

    def write_into(self, input_ids, attention_mask=None, token_type_ids=None, *, special_tokens_mask=None,
                   offsets=None, padding=Padding(), rows=None):
        """Write rows, padded, into the caller's buffers; all are int64 or all int32, C-contiguous and writable."""
        cdef Targets targets
        cdef const int64_t[::1] wanted = None if rows is None else _checks_rows.wanted_rows(rows, self.rows)
        cdef Py_ssize_t count = self.rows if rows is None else wanted.shape[0], index, longest = 0
        cdef const int64_t* first = NULL
        if rows is None:
            longest = self.width
        elif count:
            first = &wanted[0]
            for index in range(count):
                longest = max(longest, self.length_of(wanted[index]))
        memset(&targets, 0, sizeof(targets))
        targets.pad_id = padding.pad_id
        targets.pad_type_id = padding.pad_type_id
        targets.left = padding.side == "left"
        try:
            fit = open_targets(
                &targets, (input_ids, attention_mask, token_type_ids, special_tokens_mask, offsets), count, longest
            ) and (offsets is None or self.has_offsets)
            if not fit:  # the slow check words the error
                _checks_rows.row_buffers(
                    self.lengths,
                    rows,
                    has_offsets=self.has_offsets,
                    input_ids=input_ids,
                    attention_mask=attention_mask,
                    token_type_ids=token_type_ids,
                    special_tokens_mask=special_tokens_mask,
                    offsets=offsets,
                )
                raise ValueError("input_ids: expected buffers that stay as they are, found that they changed meanwhile")
            with nogil:
                if targets.itemsize == sizeof(int64_t):
                    write_rows[int64_t](self, &targets, first, count, 0)
                else:
                    write_rows[int32_t](self, &targets, first, count, 0)
        finally:
            close_targets(&targets)


cdef enum:
    INPUT_IDS
    ATTENTION_MASK
    TOKEN_TYPE_IDS
    SPECIAL_TOKENS_MASK
    OFFSETS
    BUFFERS  # how many there are


# The caller's buffers, held while they are written.
cdef struct Targets:
    Py_buffer[5] views  # zeroed: not wanted
    Py_ssize_t itemsize
    Py_ssize_t width
    int64_t pad_id
    int64_t pad_type_id
    bint left


cdef bint open_targets(Targets* targets, tuple buffers, Py_ssize_t rows, Py_ssize_t width) except -1:
    """Hold the buffers; False if one does not fit. The quick form of `_checks_rows.row_buffers`."""
    cdef int index, other
    cdef Py_buffer* view
    for index in range(BUFFERS):
        if buffers[index] is None:
            continue
        if not isinstance(buffers[index], np.ndarray):
            return False
        view = &targets.views[index]
        try:
            PyObject_GetBuffer(buffers[index], view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT)
        except (ValueError, BufferError):
            return False
        if index == INPUT_IDS:
            targets.itemsize = view.itemsize
            targets.width = view.shape[1] if view.ndim == 2 else -1
        if not fits(targets, view, rows, width, index == OFFSETS):
            return False
        for other in range(index):
            if overlap(view, &targets.views[other]):
                return False
    return True


cdef bint fits(const Targets* targets, const Py_buffer* view, Py_ssize_t rows, Py_ssize_t width,
               bint offsets) noexcept:
    cdef char code = view.format[0]
    if view.format[1] != 0 or view.itemsize != targets.itemsize or <size_t> view.buf % view.itemsize:
        return False
    if not (code == b"i" or code == b"l" or code == b"q") or view.itemsize not in (sizeof(int32_t), sizeof(int64_t)):
        return False
    if view.ndim != (3 if offsets else 2) or (offsets and view.shape[2] != 2):
        return False
    return view.shape[0] == rows and view.shape[1] == targets.width and targets.width >= width


cdef bint overlap(const Py_buffer* one, const Py_buffer* other) noexcept:
    return <char*> one.buf < <char*> other.buf + other.len and <char*> other.buf < <char*> one.buf + one.len


cdef void close_targets(Targets* targets) noexcept:
    cdef int index
    for index in range(BUFFERS):
        PyBuffer_Release(&targets.views[index])  # does nothing for a zeroed one


cdef inline void fill_range(id_t* out, Py_ssize_t start, Py_ssize_t stop, id_t value) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(start, stop):
        out[index] = value


cdef inline void fill(id_t* out, Py_ssize_t before, Py_ssize_t behind, Py_ssize_t width, id_t value) noexcept nogil:
    """Write what stands on both sides of a row."""
    fill_range(out, 0, before, value)
    fill_range(out, behind, width, value)


cdef void write_rows(Tokenized rows, const Targets* targets, const int64_t* wanted, Py_ssize_t count,
                     id_t unused) noexcept nogil:
    cdef Py_ssize_t width = targets.width, place, row, before, behind
    cdef id_t* ids = <id_t*> targets.views[INPUT_IDS].buf
    cdef id_t* mask = <id_t*> targets.views[ATTENTION_MASK].buf
    cdef id_t* types = <id_t*> targets.views[TOKEN_TYPE_IDS].buf
    cdef id_t* specials = <id_t*> targets.views[SPECIAL_TOKENS_MASK].buf
    cdef id_t* spans = <id_t*> targets.views[OFFSETS].buf
    for place in range(count):
        row = place if wanted == NULL else wanted[place]
        before = width - rows.length_of(row) if targets.left else 0
        behind = before + rows.length_of(row)
        fill(ids + place * width, before, behind, width, <id_t> targets.pad_id)
        write_ids(rows, ids + place * width + before, row)
        if mask != NULL:
            fill(mask + place * width, before, behind, width, <id_t> 0)
            fill_range(mask + place * width, before, behind, <id_t> 1)
        if types != NULL:
            fill(types + place * width, before, behind, width, <id_t> targets.pad_type_id)
            write_marks(rows, types + place * width + before, row, True)
        if specials != NULL:
            fill(specials + place * width, before, behind, width, <id_t> 1)
            write_marks(rows, specials + place * width + before, row, False)
        if spans != NULL:
            fill(spans + 2 * place * width, 2 * before, 2 * behind, 2 * width, <id_t> 0)
            write_spans(rows, spans + 2 * (place * width + before), row)


cdef void write_ids(Tokenized rows, id_t* out, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t index
    cdef size_t item, count
    cdef const int32_t* ids
    cdef int text
    for index in range(rows.piece_count):
        if rows.pieces[index].source >= 0:
            out[0] = <id_t> rows.pieces[index].source
            out += 1
            continue
        text = 0 if rows.pieces[index].source == SEQUENCE_A else 1
        count = rows.part.rows[row].count[text]
        ids = rows.part.ids.items + rows.part.rows[row].start[text]
        for item in range(count):
            out[item] = ids[item]
        out += count


cdef void write_marks(Tokenized rows, id_t* out, Py_ssize_t row, bint type_ids) noexcept nogil:
    """Write token type ids, or 1 for special tokens and 0 for others."""
    cdef Py_ssize_t index, count
    cdef id_t mark
    for index in range(rows.piece_count):
        count = 1
        if rows.pieces[index].source < 0:
            count = rows.part.rows[row].count[0 if rows.pieces[index].source == SEQUENCE_A else 1]
        mark = rows.pieces[index].type_id if type_ids else rows.pieces[index].source >= 0
        fill_range(out, 0, count, mark)
        out += count


cdef inline int32_t place_of(int32_t number, bint first) noexcept nogil:
    """What a number of a span stands for; see TokenizeText in _rows.pxd."""
    return number if number >= 0 else ~number - first


cdef void write_spans(Tokenized rows, id_t* out, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t index
    cdef size_t item, count
    cdef const int32_t* spans
    cdef int text
    for index in range(rows.piece_count):
        if rows.pieces[index].source >= 0:
            out[0] = out[1] = 0
            out += 2
            continue
        text = 0 if rows.pieces[index].source == SEQUENCE_A else 1
        count = rows.part.rows[row].count[text]
        spans = rows.part.spans.items + 2 * rows.part.rows[row].start[text]
        for item in range(2 * count):
            out[item] = place_of(spans[item], item < 2)
        out += 2 * count
