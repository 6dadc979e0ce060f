# What every tokenizer kernel shares: texts in, ragged rows out, and those into the caller's buffers.
#
# A kernel brings an Engine (how to tokenize one text) and its templates; Tokenizer in _rows.pyx does the rest: views of
# the texts, surrogates, truncation, threads, and work memory that is reused from call to call.

from edgeonnx_ext._arrays cimport Ids
from edgeonnx_ext._text cimport Text
from edgeonnx_ext._tokenized cimport Piece


# Append the ids of a text to `ids` (they already hold others), and to `spans`, unless it is NULL, two numbers for each
# id: start and end of its characters in the text. A number that is one less if the token is the first of its window
# (the library trims offsets after truncation) stands there as its complement, below 0. May stop after `enough` ids.
# False if there is no memory.
ctypedef bint (*TokenizeText)(
    const void* rules, void* work, const Text* text, size_t enough, Ids* ids, Ids* spans
) noexcept nogil
# Work memory of one call at a time (growing arrays, caches); NULL if there is no memory.
ctypedef void* WorkMemory
ctypedef void* (*NewWork)() noexcept nogil
ctypedef void (*FreeWork)(void* work) noexcept nogil


cdef struct Engine:
    const void* rules  # read-only while texts are tokenized: several threads share it
    TokenizeText tokenize
    NewWork new_work
    FreeWork free_work


cdef enum:
    MOST_KEPT = 8  # work memories that a tokenizer keeps for the next calls


cdef class Tokenizer:
    cdef Engine engine
    cdef Piece* single
    cdef Piece* pair
    cdef Py_ssize_t single_pieces
    cdef Py_ssize_t pair_pieces
    cdef WorkMemory[8] kept_work
    cdef int kept_count

    cdef object set_templates(self, object single, object pair)
