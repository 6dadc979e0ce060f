# NFC of whole texts, for callers in Python; tokenizer kernels use _nfc.pxd. What it means stands in reference/nfc.py.

from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.stdint cimport int32_t
from libc.stdlib cimport free

import numpy as np

from edgeonnx_ext._arrays cimport Chars, Ids
from edgeonnx_ext._nfc cimport NfcRules, nfc_is_same, nfc_load, nfc_text
from edgeonnx_ext._text cimport Text


cdef extern from "Python.h":
    object PyUnicode_FromKindAndData(int kind, const void* data, Py_ssize_t length)


cdef NfcRules rules  # loaded once, for the life of the process
cdef object memory_of_rules = nfc_load(&rules)


cdef Text view(text) except *:
    """The code points of a text, which must outlive the view."""
    cdef Text result
    if not isinstance(text, str):
        raise TypeError(f"text: expected a str, found {type(text).__name__}")
    result.data = PyUnicode_DATA(text)
    result.kind = PyUnicode_KIND(text)
    result.length = PyUnicode_GET_LENGTH(text)
    result.ascii = text.isascii()
    return result


cdef object normalize(text, bint aligned):
    """Return NFC of `text`, and int32 (its length,) or None."""
    cdef Text seen = view(text)
    cdef Chars out
    cdef Ids positions
    cdef bint room
    cdef int32_t[::1] copied
    cdef size_t index
    out.items, out.count, out.room = NULL, 0, 0
    positions.items, positions.count, positions.room = NULL, 0, 0
    try:
        with nogil:
            room = nfc_text(&rules, &seen, 0, seen.length, &out, &positions if aligned else NULL)
        if not room:
            raise MemoryError(f"expected memory for a text of {seen.length} characters, found none")
        array = np.empty(positions.count, dtype=np.int32) if aligned else None
        if aligned:
            copied = array
            for index in range(positions.count):
                copied[index] = positions.items[index]
        return PyUnicode_FromKindAndData(4, out.items, out.count) if out.count else "", array
    finally:
        free(out.items)
        free(positions.items)


def is_stable(text):
    """Return whether a quick look tells that NFC leaves `text` as it is; False: it may or may not."""
    cdef Text seen = view(text)
    return nfc_is_same(&rules, &seen, 0, seen.length)


def nfc(text):
    """Return NFC of `text`; lone surrogates stay."""
    return normalize(text, False)[0]


def nfc_aligned(text):
    """Return NFC of `text`, and which character of `text` each of its characters is aligned with."""
    return normalize(text, True)
