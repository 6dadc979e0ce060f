# A Python text as C sees it: its code points where they lie, without a copy. The str must outlive the view.

from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef struct Text:
    const void* data
    int kind  # bytes of a code point: 1 (Latin-1 or ASCII), 2 or 4
    bint ascii  # all below 128: then `data` is also the text's UTF-8
    Py_ssize_t length  # code points


cdef inline uint32_t char_at(const Text* text, Py_ssize_t index) noexcept nogil:
    if text.kind == 1:
        return (<const uint8_t*> text.data)[index]
    if text.kind == 2:
        return (<const uint16_t*> text.data)[index]
    return (<const uint32_t*> text.data)[index]


cdef inline bint may_have_surrogate(const Text* text) noexcept nogil:
    """Whether a code unit is a surrogate: a loop without a branch, which the compiler makes wide."""
    cdef const uint16_t* units = <const uint16_t*> text.data
    cdef const uint32_t* chars = <const uint32_t*> text.data
    cdef uint32_t found = 0
    cdef Py_ssize_t index
    if text.kind == 2:
        for index in range(text.length):
            found |= (units[index] & 0xF800) == 0xD800
    elif text.kind == 4:
        for index in range(text.length):
            found |= (chars[index] & 0x1FF800) == 0xD800
    return found != 0


cdef inline Py_ssize_t find_surrogate(const Text* text) noexcept nogil:
    """The position of the first lone surrogate, or -1."""
    cdef Py_ssize_t index
    if not may_have_surrogate(text):
        return -1
    for index in range(text.length):
        if (char_at(text, index) & 0x1FF800) == 0xD800:
            return index
    return -1
