# Ids to text, whole and as they come. What each thing means stands in reference/decoding.py.
#
# All tokens lie in one arena of bytes, each in two pieces: as the first token of a text, and after another token
# (decoding.token_pieces). The loop only joins pieces; CPython's UTF-8 decoder makes the str, U+FFFD included.

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strchr, strlen

import numpy as np

from edgeonnx_ext import _checks_decoding as checks
from edgeonnx_ext.decoding import token_pieces

from edgeonnx_ext._arrays cimport Bytes, reserve_bytes


cdef extern from "Python.h":
    PyObject** PySequence_Fast_ITEMS(object items)
    Py_ssize_t PySequence_Fast_GET_SIZE(object items)
    bint PyLong_CheckExact(PyObject* item)
    long long PyLong_AsLongLongAndOverflow(PyObject* item, int* overflow) except? -1


cdef enum:
    HOLE = 0
    TOKEN = 1
    SPECIAL = 2


cdef enum:
    OUT_OF_MEMORY = -2


# A token in the arena, in two pieces: as a text's first token, and after another token.
cdef struct Token:
    uint32_t kind
    uint32_t[2] start
    uint32_t[2] length


cdef struct Vocabulary:
    Token* tokens
    int64_t size
    Bytes arena


# The ids of one sequence, in an array of one of two widths.
cdef struct IdView:
    const void* items
    bint wide  # int64, else int32
    Py_ssize_t count


cdef inline int64_t id_at(const IdView* ids, Py_ssize_t position) noexcept nogil:
    if ids.wide:
        return (<const int64_t*> ids.items)[position]
    return (<const int32_t*> ids.items)[position]


cdef inline const Token* find_token(const Vocabulary* vocabulary, int64_t token_id) noexcept nogil:
    """The token of an id, or NULL."""
    if not 0 <= token_id < vocabulary.size or vocabulary.tokens[token_id].kind == HOLE:
        return NULL
    return &vocabulary.tokens[token_id]


cdef Py_ssize_t join(const Vocabulary* vocabulary, const IdView* ids, bint skip, Bytes* out) noexcept nogil:
    """Append the pieces of `ids`; return -1, the position of the first id without token, or OUT_OF_MEMORY."""
    cdef Py_ssize_t position
    cdef const Token* token
    cdef int which = 0
    for position in range(ids.count):
        token = find_token(vocabulary, id_at(ids, position))
        if token == NULL:
            return position
        if skip and token.kind == SPECIAL:
            continue
        if token.length[which]:
            if not reserve_bytes(out, token.length[which]):
                return OUT_OF_MEMORY
            memcpy(out.items + out.count, vocabulary.arena.items + token.start[which], token.length[which])
            out.count += token.length[which]
        which = 1
    return -1


cdef inline int character_length(uint8_t first) noexcept nogil:
    """The bytes of a UTF-8 character that starts with `first`; 0 if none does."""
    if 0xC2 <= first < 0xE0:
        return 2
    if 0xE0 <= first < 0xF0:
        return 3
    return 4 if 0xF0 <= first < 0xF5 else 0


cdef inline bint may_follow(uint8_t first, uint8_t second) noexcept nogil:
    """Whether a continuation byte may be the second of a character (The Unicode Standard, table 3-7)."""
    if first == 0xE0:
        return second >= 0xA0
    if first == 0xED:
        return second < 0xA0
    if first == 0xF0:
        return second >= 0x90
    return first != 0xF4 or second < 0x90


cdef Py_ssize_t incomplete_tail(const uint8_t* data, Py_ssize_t length) noexcept nogil:
    """How many bytes at the end start a character that further bytes could complete: 0 to 3."""
    cdef Py_ssize_t count
    cdef const uint8_t* first
    for count in range(1, min(<Py_ssize_t> 3, length) + 1):
        first = data + length - count
        if 0x80 <= first[0] < 0xC0:
            continue
        if character_length(first[0]) <= count or (count > 1 and not may_follow(first[0], first[1])):
            return 0
        return count
    return 0


cdef inline str text_of(const uint8_t* data, Py_ssize_t length):
    if length == 0:
        return ""
    return PyUnicode_DecodeUTF8(<const char*> data, length, "replace")


cdef bint exact_ints(object items, int64_t* numbers) except -1:
    """Copy a list or tuple of nothing but int; False at the first item that is something else.

    A number beyond int64 becomes -1, which no token has.
    """
    cdef PyObject** objects = PySequence_Fast_ITEMS(items)
    cdef Py_ssize_t position
    cdef int overflow = 0
    for position in range(PySequence_Fast_GET_SIZE(items)):
        if not PyLong_CheckExact(objects[position]):
            return False
        numbers[position] = PyLong_AsLongLongAndOverflow(objects[position], &overflow)
    return True


cdef bint get_ids(object ids, Py_buffer* buffer) except -1:
    """Get the memory of an int32 or int64 array (n,), C-contiguous and aligned; False if `ids` is another array.

    Of another byte order, or misaligned, its format has a prefix.
    """
    try:
        PyObject_GetBuffer(ids, buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError):
        return False
    if (
        buffer.ndim == 1
        and (buffer.itemsize == 4 or buffer.itemsize == 8)
        and strlen(buffer.format) == 1
        and strchr(b"ilq", buffer.format[0]) != NULL
    ):
        return True
    PyBuffer_Release(buffer)
    return False


cdef class Decoder:
    """Ids to text, exactly as Hugging Face `tokenizers` decodes them. See `reference.decoding.Decoder`."""

    cdef Vocabulary vocabulary

    def __cinit__(self, model):
        cdef Py_ssize_t size = model.size
        cdef Token* token
        self.vocabulary.tokens = <Token*> calloc(size, sizeof(Token))
        if self.vocabulary.tokens == NULL:
            raise MemoryError(f"expected memory for {size} tokens, found none")
        self.vocabulary.size = size
        for token_id, text in model.tokens.items():
            first, following = token_pieces(model, text)
            token = &self.vocabulary.tokens[<int64_t> token_id]
            token.kind = SPECIAL if token_id in model.special_ids else TOKEN
            self.keep(first, &token.start[0], &token.length[0])
            token.start[1], token.length[1] = token.start[0], token.length[0]
            if following != first:
                self.keep(following, &token.start[1], &token.length[1])

    def __dealloc__(self):
        free(self.vocabulary.tokens)
        free(self.vocabulary.arena.items)

    cdef object keep(self, bytes piece, uint32_t* start, uint32_t* length):
        cdef Bytes* arena = &self.vocabulary.arena
        cdef size_t count = PyBytes_GET_SIZE(piece)
        if arena.count + count > <size_t> 0xFFFFFFFF:
            raise ValueError("model: expected tokens of less than 2**32 bytes together, found more")
        if not reserve_bytes(arena, count + 1):  # one byte more, so that the arena is never NULL
            raise MemoryError(f"expected memory for tokens of {arena.count + count} bytes, found none")
        memcpy(arena.items + arena.count, PyBytes_AS_STRING(piece), count)
        start[0] = <uint32_t> arena.count
        length[0] = <uint32_t> count
        arena.count += count

    @property
    def size(self):
        """The highest id, plus 1."""
        return self.vocabulary.size

    def decode(self, ids, skip_special_tokens=True):
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_row(ids, skip_special_tokens, None)

    def decode_batch(self, batch, skip_special_tokens=True):
        """Return the text of each row of `batch`, as `decode`."""
        rows = checks.batch_rows(batch)
        return [self.decode_row(ids, skip_special_tokens, row) for row, ids in enumerate(rows)]

    def token_bytes(self, token_id):
        """Return the bytes that a token adds to a text after another token, special or not."""
        cdef const Token* token = self.token_of(token_id)
        cdef const uint8_t* piece = self.vocabulary.arena.items + token.start[1]
        return PyBytes_FromStringAndSize(<const char*> piece, token.length[1])

    cdef object decode_row(self, ids, bint skip, row):
        """Decode one sequence; `row` only names it in errors."""
        cdef Py_buffer buffer
        if isinstance(ids, np.ndarray) and get_ids(ids, &buffer):
            try:
                return self.decode_buffer(&buffer, skip, ids, row)
            finally:
                PyBuffer_Release(&buffer)
        items = checks.id_items(ids, row_name(row))
        if isinstance(items, np.ndarray):
            items = items.tolist()  # an array that get_ids does not know, but that passed the checks
        return self.decode_items(items, skip, row)

    cdef object decode_buffer(self, const Py_buffer* buffer, bint skip, items, row):
        cdef IdView view
        view.items = buffer.buf
        view.count = buffer.len // buffer.itemsize
        view.wide = buffer.itemsize == 8
        return self.decode_view(&view, skip, items, row)

    cdef object decode_items(self, items, bint skip, row):
        """Decode a list or tuple."""
        cdef IdView view
        cdef int64_t* numbers
        cdef const int64_t[::1] converted
        view.count = PySequence_Fast_GET_SIZE(items)
        view.wide = True
        numbers = <int64_t*> malloc((view.count + 1) * sizeof(int64_t))
        if numbers == NULL:
            raise MemoryError(f"expected memory for {view.count} ids, found none")
        try:
            view.items = numbers
            if not exact_ints(items, numbers):
                converted = checks.id_array(items, row_name(row))
                view.items = &converted[0]
            return self.decode_view(&view, skip, items, row)
        finally:
            free(numbers)

    cdef object decode_view(self, const IdView* ids, bint skip, items, row):
        cdef Bytes out
        cdef Py_ssize_t problem
        out.items = NULL
        out.count = out.room = 0
        try:
            with nogil:
                problem = join(&self.vocabulary, ids, skip, &out)
            if problem == OUT_OF_MEMORY:
                raise MemoryError(f"expected memory for more than {out.count} bytes of text, found none")
            if problem >= 0:
                checks.raise_unknown_id(f"{row_name(row)}[{problem}]", items[problem], self.vocabulary.size)
            return text_of(out.items, out.count)
        finally:
            free(out.items)

    cdef const Token* token_of(self, token_id) except NULL:
        """The token of an id, or ValueError."""
        cdef int64_t number
        cdef int overflow = 0
        cdef const Token* token
        value = token_id if type(token_id) is int else checks.index(token_id, "token_id")
        number = PyLong_AsLongLongAndOverflow(<PyObject*> value, &overflow)  # -1 if it overflows
        token = find_token(&self.vocabulary, number)
        if token == NULL:
            checks.raise_unknown_id("token_id", value, self.vocabulary.size)
        return token


cdef str row_name(row):
    return "ids" if row is None else f"batch[{row}]"


cdef class DecodeStream:
    """The text of a sequence as its ids come, for one sequence at a time. See `reference.decoding.DecodeStream`."""

    cdef Decoder decoder
    cdef bint skip
    cdef int which  # the piece of the next token: 0 while there is none before it
    cdef uint8_t[4] pending  # the first bytes of a character
    cdef Py_ssize_t waiting  # how many of them: 0 to 3
    cdef Bytes joined  # work memory: what waited, and the token after it

    def __cinit__(self, decoder, skip_special_tokens=True):
        if not isinstance(decoder, Decoder):
            raise TypeError(f"decoder: expected a Decoder of this module, found {type(decoder).__name__}")
        self.decoder = decoder
        self.skip = skip_special_tokens

    def __dealloc__(self):
        free(self.joined.items)

    def push(self, token_id):
        """Return the text that has become certain with this id; often a token's, sometimes ""."""
        cdef const Token* token = self.decoder.token_of(token_id)
        cdef const uint8_t* data
        cdef Py_ssize_t length, tail
        if self.skip and token.kind == SPECIAL:
            return ""
        data = self.decoder.vocabulary.arena.items + token.start[self.which]
        length = token.length[self.which]
        if self.waiting:
            data = self.join_waiting(data, length)
            length += self.waiting
        tail = incomplete_tail(data, length)
        text = text_of(data, length - tail)
        # Last, so that a failure above leaves the stream as it was.
        memcpy(self.pending, data + length - tail, tail)
        self.waiting = tail
        self.which = 1
        return text

    cdef const uint8_t* join_waiting(self, const uint8_t* data, Py_ssize_t length) except NULL:
        """The bytes that wait, and then `data`."""
        if not reserve_bytes(&self.joined, self.waiting + length):  # its count stays 0: each call starts anew
            raise MemoryError(f"expected memory for a token of {length} bytes, found none")
        memcpy(self.joined.items, self.pending, self.waiting)
        memcpy(self.joined.items + self.waiting, data, length)
        return self.joined.items

    def finish(self):
        """Return what still waits (U+FFFD, as no more bytes come), or ""; the next id starts a new sequence."""
        text = text_of(self.pending, self.waiting)
        self.reset()
        return text

    def reset(self):
        """Forget the sequence; the next id starts a new one."""
        self.waiting = 0
        self.which = 0
