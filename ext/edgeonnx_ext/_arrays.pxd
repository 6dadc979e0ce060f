# Growing arrays of plain C, without the GIL. A zeroed struct is an empty array; free its items when done.

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport realloc


cdef struct Ids:
    int32_t* items
    size_t count
    size_t room


cdef struct Chars:
    uint32_t* items
    size_t count
    size_t room


cdef struct Bytes:
    uint8_t* items
    size_t count
    size_t room


cdef inline void* grown(void* items, size_t* room, size_t wanted, size_t size) noexcept nogil:
    """`items` moved to at least `wanted` places of `size` bytes, or NULL (the old array stays as it was)."""
    cdef size_t places = 2 * room[0] if room[0] else 256
    cdef void* moved
    places = max(places, wanted)
    moved = realloc(items, places * size)
    if moved != NULL:
        room[0] = places
    return moved


cdef inline bint reserve_ids(Ids* ids, size_t more) noexcept nogil:
    """Make room for `more` further items, so that a loop may write them unchecked; False if there is no memory."""
    cdef void* moved
    if ids.count + more <= ids.room:
        return True
    moved = grown(ids.items, &ids.room, ids.count + more, sizeof(int32_t))
    if moved == NULL:
        return False
    ids.items = <int32_t*> moved
    return True


cdef inline bint push_id(Ids* ids, int32_t item) noexcept nogil:
    """Append; False if there is no memory."""
    if ids.count == ids.room and not reserve_ids(ids, 1):
        return False
    ids.items[ids.count] = item
    ids.count += 1
    return True


cdef inline bint push_span(Ids* spans, int32_t start, int32_t end) noexcept nogil:
    """Append the two ends of a span; False if there is no memory."""
    return push_id(spans, start) and push_id(spans, end)


cdef inline bint reserve_chars(Chars* chars, size_t more) noexcept nogil:
    """As reserve_ids."""
    cdef void* moved
    if chars.count + more <= chars.room:
        return True
    moved = grown(chars.items, &chars.room, chars.count + more, sizeof(uint32_t))
    if moved == NULL:
        return False
    chars.items = <uint32_t*> moved
    return True


cdef inline bint push_char(Chars* chars, uint32_t item) noexcept nogil:
    """Append; False if there is no memory."""
    if chars.count == chars.room and not reserve_chars(chars, 1):
        return False
    chars.items[chars.count] = item
    chars.count += 1
    return True


cdef inline bint reserve_bytes(Bytes* data, size_t more) noexcept nogil:
    """As reserve_ids."""
    cdef void* moved
    if data.count + more <= data.room:
        return True
    moved = grown(data.items, &data.room, data.count + more, 1)
    if moved == NULL:
        return False
    data.items = <uint8_t*> moved
    return True
