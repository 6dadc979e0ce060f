# Where the pieces of an ASCII section start, for 64 bytes at once: one bit a byte, and bit arithmetic instead of loops
# whose ends no branch predictor can know. It says the same as the scanners of `_scan.pxd`, which do all the rest.
#
# A word of each mask holds the classes of 64 bytes; `behind(mask)` is the mask of the bytes that stand behind one of
# it. Two facts make the patterns local: what a run of whitespace becomes depends on the character behind it alone, and
# whether an apostrophe begins a contraction depends on the one before and at most two behind.

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset

from edgeonnx_ext._bits cimport lowest_bit
from edgeonnx_ext._scan cimport GPT2, LLAMA3, QWEN2, Pattern, any_case_contraction, contraction


cdef enum Digits:
    DIGITS_KEPT  # the pattern alone cuts
    DIGITS_SINGLE  # each digit is cut off before
    DIGITS_RUNS  # runs of digits are


# One bit for each of 64 bytes; none for bytes behind the section's end.
cdef struct Masks:
    uint64_t letter
    uint64_t number
    uint64_t space  # any whitespace
    uint64_t blank  # ' '
    uint64_t other
    uint64_t apostrophe
    uint64_t lone  # an other with neither an other nor a blank before it


cdef inline uint64_t at_least(uint64_t bytes, uint8_t value) noexcept nogil:
    """Set the highest bit of each byte that is `value` or more; both are below 128."""
    return bytes + (0x80 - value) * 0x0101010101010101ULL


cdef inline uint64_t within(uint64_t bytes, uint8_t low, uint8_t high) noexcept nogil:
    """One bit for each of eight bytes: whether low <= byte <= high. All are ASCII."""
    cdef uint64_t inside = at_least(bytes, low) & ~at_least(bytes, high + 1) & 0x8080808080808080ULL
    return (inside * 0x0002040810204081ULL) >> 56


cdef inline void fill_masks(Masks* masks, const uint8_t* at, size_t length) noexcept nogil:
    """Classify `length` bytes (at most 64 count) of ASCII; 64 bytes can be read, and those behind may be any."""
    cdef uint64_t bytes, valid = ~<uint64_t> 0
    cdef int shift
    masks.letter = masks.number = masks.space = masks.blank = masks.apostrophe = 0
    for shift in range(0, 64, 8):
        memcpy(&bytes, at + shift, 8)
        masks.letter |= within(bytes | 0x2020202020202020ULL, c"a", c"z") << shift
        masks.number |= within(bytes, c"0", c"9") << shift
        masks.space |= within(bytes, 9, 13) << shift
        masks.blank |= within(bytes, c" ", c" ") << shift
        masks.apostrophe |= within(bytes, c"'", c"'") << shift
    if length < 64:
        valid = (<uint64_t> 1 << length) - 1
    masks.letter &= valid
    masks.number &= valid
    masks.blank &= valid
    masks.apostrophe &= valid
    masks.space = (masks.space & valid) | masks.blank
    masks.other = valid & ~(masks.letter | masks.number | masks.space)


cdef inline uint64_t behind(uint64_t mask, uint64_t before) noexcept nogil:
    """Which bytes stand behind one of `mask`; `before` is the mask of the 64 bytes before."""
    return mask << 1 | before >> 63


cdef inline uint64_t ahead(uint64_t mask, uint64_t after) noexcept nogil:
    """Which bytes stand before one of `mask`; `after` is the mask of the 64 bytes after."""
    return mask >> 1 | after << 63


cdef inline uint64_t gpt2_starts(const Masks* before, const Masks* now, const Masks* after,
                                 Digits digits) noexcept nogil:
    """Where pieces start, but for contractions."""
    cdef uint64_t space_behind = behind(now.space, before.space)
    cdef uint64_t letters = now.letter & behind(now.letter, before.letter)
    cdef uint64_t numbers = now.number & behind(now.number, before.number)
    cdef uint64_t others = now.other & behind(now.other, before.other)
    cdef uint64_t joined = behind(now.blank, before.blank) | letters | others
    cdef uint64_t visible = now.letter | now.other
    cdef uint64_t visible_ahead = ahead(visible, after.letter | after.other)
    if digits == DIGITS_KEPT:
        visible |= now.number
        visible_ahead |= ahead(now.number, after.number)
        joined |= numbers
        numbers = 0
    elif digits == DIGITS_SINGLE:
        numbers = now.number
    else:
        numbers = now.number & ~numbers
    # The first whitespace of a run; the last one, if something follows; and what no blank or equal stands before.
    return (now.space & ~space_behind) | (now.space & visible_ahead) | (visible & ~joined) | numbers


cdef inline uint64_t llama3_starts(const Masks* before, const Masks* now, const Masks* after) noexcept nogil:
    """Where pieces start, but for contractions and numbers; all whitespace is blanks."""
    cdef uint64_t blank_behind = behind(now.blank, before.blank)
    cdef uint64_t joined = behind(now.letter, before.letter) | blank_behind | behind(now.lone, before.lone)
    cdef uint64_t visible = now.letter | now.number | now.other
    cdef uint64_t visible_ahead = ahead(visible, after.letter | after.number | after.other)
    return (now.blank & (~blank_behind | visible_ahead)) | (now.letter & ~joined) | now.lone


cdef inline uint64_t number_starts(const Masks* before, const Masks* now, int* run) noexcept nogil:
    """Where groups of three numbers start; `run` is how many of a run the bytes before have."""
    cdef uint64_t starts = 0, bits = now.number
    cdef uint64_t joined = now.number & behind(now.number, before.number)
    cdef size_t place
    while bits:
        place = lowest_bit(bits)
        bits &= bits - 1
        run[0] = run[0] + 1 if joined >> place & 1 else 0
        if run[0] % 3 == 0:
            starts |= <uint64_t> 1 << place
            run[0] = 0
    return starts


cdef inline uint64_t mark_contractions(const uint8_t* at, uint64_t apostrophes, uint64_t starts, Pattern pattern,
                                       uint64_t* following) noexcept nogil:
    """The starts of 64 bytes at `at`, with those behind contractions and without those inside; `following` are the
    first starts of the next 64 bytes that this settles, with bit 63 for "not the first one".
    """
    cdef uint64_t candidates = apostrophes & starts
    cdef size_t place
    cdef Py_ssize_t length
    following[0] = 0
    while candidates:
        place = lowest_bit(candidates)
        candidates &= candidates - 1
        length = contraction(at + place) if pattern == GPT2 else any_case_contraction(at + place)
        if not length:
            continue
        if place == 63:
            following[0] |= <uint64_t> 1 << 63
        else:
            starts &= ~(<uint64_t> 2 << place)
        if place + length < 64:
            starts |= <uint64_t> 1 << (place + length)
        else:
            following[0] |= <uint64_t> 1 << (place + length - 64)
    return starts


cdef inline bint mark_starts(const uint8_t* section, size_t length, Pattern pattern, Digits digits,
                             uint64_t* words) noexcept nogil:
    """Set a bit for each byte of an ASCII section at which a piece starts, and one for its end.

    Args:
        section: Its bytes; 64 more can be read.
        words: length // 64 + 1 words.

    Returns:
        False if the section holds what only the scanners do: to LLAMA3 and QWEN2, whitespace other than ' '.
    """
    cdef Masks before, now, after
    cdef size_t word, last = length // 64
    cdef uint64_t starts, following = 0, settled
    cdef int run = 0
    memset(&before, 0, sizeof(before))
    fill_masks(&now, section, min(<size_t> 64, length))
    for word in range(last + 1):
        memset(&after, 0, sizeof(after))
        if word < last:
            fill_masks(&after, section + 64 * (word + 1), min(<size_t> 64, length - 64 * (word + 1)))
        now.lone = now.other & ~behind(now.other | now.blank, before.other | before.blank)
        if pattern == GPT2:
            starts = gpt2_starts(&before, &now, &after, digits)
        else:
            if now.space != now.blank:
                return False
            starts = llama3_starts(&before, &now, &after)
            starts |= now.number if pattern == QWEN2 else number_starts(&before, &now, &run)
        settled = following
        starts &= ~(settled >> 63)
        starts = mark_contractions(section + 64 * word, now.apostrophe, starts, pattern, &following)
        words[word] = starts | (settled & 7)
        before = now
        now = after
    words[last] |= <uint64_t> 1 << (length & 63)
    return True
