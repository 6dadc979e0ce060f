# distutils: language = c++
"""Compiled text of floats: JSON and base64. `reference/floats.py` documents arguments and errors."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_1BYTE_DATA, PyUnicode_New
from libc.math cimport fabsf, isfinite
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from edgeonnx_ext import _checks_floats


cdef extern from *:
    """
    #include <charconv>

    /* The shortest decimal that reads back as `value`, in scientific notation; at most 14 characters. */
    static char *edge_write_scientific(char *out, float value)
    {
        return std::to_chars(out, out + 32, value, std::chars_format::scientific).ptr;
    }
    """
    char* edge_write_scientific(char* out, float value) noexcept nogil


cdef enum:
    MOST_CHARACTERS = 48  # of a number and a comma, with room for what is written beyond and cut off

cdef float LEAST = 1e-5  # the least number in positional notation
cdef float MOST = 1e7
cdef uint64_t[16] TENS
cdef uint64_t[16] FIVES
cdef char[200] PAIRS  # "00" to "99"
for number in range(16):
    TENS[number] = 10**number
    FIVES[number] = 5**number
for number in range(100):
    PAIRS[2 * number], PAIRS[2 * number + 1] = 48 + number // 10, 48 + number % 10


cdef struct Decimal:
    uint64_t digits
    int places  # value = digits * 10**-places


cdef Decimal shortest(uint32_t bits) noexcept nogil:
    """The shortest decimal that reads back as a positive float32 from 1e-5 to below 1e7; the closest of these.

    As in Ryu (Adams, 2018), but all products fit into 64 bits here: x = m 2**e with m below 2**24, and
    x 10**k = 4m 5**k 2**-shift with the k that leaves 9 or 10 digits before the point. What reads back as x lies half
    a unit of m around it (a quarter below a power of two), with the ends only if m is even; digits are dropped while a
    number of fewer remains there. Random digits make branches that no processor guesses, so there are few.
    """
    cdef int e = <int> (bits >> 23) - 150
    cdef int k = 16 - ((e + 23) * 1233 + 8 * 4096 >> 12)  # 1233 / 4096 is log10(2); 8 keeps the shifted number positive
    cdef int shift = 2 - e - k
    cdef uint64_t m = (bits & 0x7FFFFF) | 0x800000, odd = m & 1, quarter = <uint64_t> (m == 0x800000)
    cdef uint64_t scaled = 4 * m * FIVES[k], digits = scaled >> shift
    cdef uint64_t low = (((4 * m - 2 + quarter) * FIVES[k] + odd + (<uint64_t> 1 << shift)) - 1) >> shift
    cdef uint64_t high = ((4 * m + 2) * FIVES[k] - odd) >> shift
    # What is dropped, as a digit and whether there is more behind it. The half decides until a digit is dropped.
    cdef uint64_t dropped = scaled & ((<uint64_t> 1 << shift) - 1), half = (<uint64_t> 1 << shift) >> 1
    cdef uint64_t last = 5 * <uint64_t> (half > 0 and dropped >= half)
    cdef uint64_t more = <uint64_t> (dropped != half * <uint64_t> (last == 5))
    cdef Decimal result
    result.places = k
    while high // 10 * 10 >= low:
        more |= last
        last = digits % 10
        digits //= 10
        low = (low + 9) // 10
        high //= 10
        result.places -= 1
    digits += <uint64_t> (last + <uint64_t> ((more | (digits & 1)) != 0) > 5)
    result.digits = min(max(digits, low), high)
    return result


cdef void write_eight(char* out, uint32_t number) noexcept nogil:
    """Write a number below 10**8 with leading zeros."""
    cdef uint32_t upper = number // 10000, lower = number % 10000
    memcpy(out, &PAIRS[2 * (upper // 100)], 2)
    memcpy(out + 2, &PAIRS[2 * (upper % 100)], 2)
    memcpy(out + 4, &PAIRS[2 * (lower // 100)], 2)
    memcpy(out + 6, &PAIRS[2 * (lower % 100)], 2)


cdef char* write_padded(char* out, uint64_t number, int digits) noexcept nogil:
    """Write the last `digits` of 16 digits of a number below 10**16; 16 characters after `out` may change."""
    cdef char[32] text
    memset(text + 16, 0, 16)
    write_eight(text, <uint32_t> (number // 100000000))
    write_eight(text + 8, <uint32_t> (number % 100000000))
    memcpy(out, text + 16 - digits, 16)
    return out + digits


cdef char* write_decimal(char* out, Decimal value) noexcept nogil:
    """Write positional notation, with at least one digit on each side of the point."""
    cdef uint64_t whole = 0
    cdef int count = 1
    if value.places < 1:  # readers that tell integers from floats must see a float
        value.digits *= TENS[1 - value.places]
        value.places = 1
    if value.digits >= TENS[value.places]:
        whole = value.digits // TENS[value.places]
        value.digits -= whole * TENS[value.places]
        while whole >= TENS[count]:
            count += 1
        out = write_padded(out, whole, count)
    else:
        out[0] = b"0"
        out += 1
    out[0] = b"."
    return write_padded(out + 1, value.digits, value.places)


cdef char* write_number(char* out, float value) noexcept nogil:
    cdef uint32_t bits
    cdef float size = fabsf(value)
    if size != 0.0 and not LEAST <= size < MOST:
        return edge_write_scientific(out, value)
    memcpy(&bits, &value, sizeof(bits))
    out[0] = b"-"  # the next character overwrites it if there is no sign
    out += bits >> 31
    if size == 0.0:
        memcpy(out, b"0.0", 3)
        return out + 3
    return write_decimal(out, shortest(bits & 0x7FFFFFFF))


cdef Py_ssize_t write_row(const float* x, Py_ssize_t count, char* out) noexcept nogil:
    """Write a JSON array; return how many characters it has."""
    cdef char* end = out
    cdef Py_ssize_t column
    end[0] = b"["
    end += 1
    for column in range(count):
        if column:
            end[0] = b","
            end += 1
        end = write_number(end, x[column])
    end[0] = b"]"
    return end + 1 - out


cdef bint all_finite(const float* x, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(count):
        if not isfinite(x[index]):
            return False
    return True


def json_rows(x):
    """Return each row as a JSON array of the shortest decimals that read back as the same float32."""
    _checks_floats.rows_of_floats(x)
    if x.size == 0:
        return [b"[]"] * len(x)
    cdef const float[:, ::1] rows = x
    cdef Py_ssize_t row, count = rows.shape[1], length = 0
    cdef bint finite
    cdef char* text
    with nogil:
        finite = all_finite(&rows[0, 0], rows.shape[0] * count)
    if not finite:
        _checks_floats.raise_not_finite(x)
    text = <char*> malloc(<size_t> (count * MOST_CHARACTERS + 2))
    if text == NULL:
        raise MemoryError
    result = []
    try:
        for row in range(rows.shape[0]):
            with nogil:
                length = write_row(&rows[row, 0], count, text)
            result.append(PyBytes_FromStringAndSize(text, length))
    finally:
        free(text)
    return result


ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef char[8192] TWICE_SIX  # the two characters of each 12 bits
for number in range(4096):
    TWICE_SIX[2 * number], TWICE_SIX[2 * number + 1] = ALPHABET[number >> 6], ALPHABET[number & 63]


cdef void write_base64(const uint8_t* data, Py_ssize_t count, uint8_t* out) noexcept nogil:
    cdef uint32_t three
    cdef Py_ssize_t _group
    for _group in range(count // 3):
        three = <uint32_t> data[0] << 16 | <uint32_t> data[1] << 8 | data[2]
        memcpy(out, &TWICE_SIX[2 * (three >> 12)], 2)
        memcpy(out + 2, &TWICE_SIX[2 * (three & 4095)], 2)
        data += 3
        out += 4
    if count % 3:
        three = <uint32_t> data[0] << 16
        if count % 3 == 2:
            three |= <uint32_t> data[1] << 8
        memcpy(out, &TWICE_SIX[2 * (three >> 12)], 2)
        out[2] = TWICE_SIX[2 * (three & 4095)] if count % 3 == 2 else b"="
        out[3] = b"="


def base64_rows(x):
    """Return the little-endian bytes of each row as base64."""
    _checks_floats.rows_of_floats(x)
    if x.size == 0:
        return [""] * len(x)
    cdef const uint8_t[:, ::1] data = x.astype("<f4", copy=False).view("u1")
    cdef Py_ssize_t row, count = data.shape[1]
    cdef uint8_t* characters
    result = []
    for row in range(data.shape[0]):
        text = PyUnicode_New((count + 2) // 3 * 4, 127)
        characters = <uint8_t*> PyUnicode_1BYTE_DATA(text)
        with nogil:
            write_base64(&data[row, 0], count, characters)
        result.append(text)
    return result
