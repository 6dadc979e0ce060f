# The pre-tokenizer patterns of byte-level BPE as hand-written scanners over UTF-8: from a piece's start to its end.
#
# A section of a text lies in a buffer that ends with the byte 0xFF, which UTF-8 never holds; its class is STOP, so that
# no loop needs to look where the section ends. Digits that a pre-tokenizer cuts off first (Digits) are STOP too: what
# stands before them ends there as at the end of the section, exactly as if it were a section of its own.
#
# The patterns are regular expressions with ordered alternatives; each scanner says which alternative it is at. Bytes of
# UTF-8 are never checked here: they come from `encode`.

from libc.stdint cimport uint8_t, uint16_t, uint32_t


# Classes of a character; a bit set, but each character has just one of the first five, and perhaps NEWLINE.
cdef enum:
    LETTER = 1  # \p{L}
    NUMBER = 2  # \p{N}
    SPACE = 4  # \s
    OTHER = 8  # none of these
    STOP = 16  # the end of a section, or a digit that is cut off beforehand
    MULTI = 32  # only of a byte: it begins a character of several bytes
    NEWLINE = 64  # \r or \n; a SPACE as well
    ODD = 128  # beside STOP: a digit to Digits, but not \p{N}


cdef enum Pattern:
    WHOLE  # no pattern: a section is one piece
    GPT2
    LLAMA3  # numbers in groups of up to three; GPT-4 as well
    QWEN2  # as LLAMA3, but every number alone


cdef struct Scanner:
    Pattern pattern
    bint digit_runs  # what Digits cuts off is a run of digits, not each alone
    uint8_t[256] bytes  # class of each ASCII character; MULTI; STOP for 0xFF
    const uint16_t* stage1  # as in edgeonnx_ext/_regex_unicode.py
    const uint8_t* stage2  # classes


cdef inline uint8_t class_of_multi(const Scanner* scanner, const uint8_t* at, Py_ssize_t* length) noexcept nogil:
    """The class of the character of two to four bytes at `at`, and its length."""
    cdef uint32_t char
    if at[0] < 0xE0:
        length[0] = 2
        char = ((at[0] & 0x1F) << 6) | (at[1] & 0x3F)
    elif at[0] < 0xF0:
        length[0] = 3
        char = ((at[0] & 0x0F) << 12) | ((at[1] & 0x3F) << 6) | (at[2] & 0x3F)
    else:
        length[0] = 4
        char = ((at[0] & 0x07) << 18) | ((at[1] & 0x3F) << 12) | ((at[2] & 0x3F) << 6) | (at[3] & 0x3F)
    return scanner.stage2[(scanner.stage1[char >> 7] << 7) + (char & 0x7F)]


cdef inline uint8_t class_at(const Scanner* scanner, const uint8_t* at, Py_ssize_t* length) noexcept nogil:
    """The class of the character at `at`, and its length in bytes."""
    cdef uint8_t found = scanner.bytes[at[0]]
    if found & MULTI:
        return class_of_multi(scanner, at, length)
    length[0] = 1
    return found


cdef inline const uint8_t* run_end(const Scanner* scanner, const uint8_t* at, uint8_t wanted) noexcept nogil:
    """The end of the characters from `at` on that are of the class `wanted`."""
    cdef Py_ssize_t length = 0
    while True:
        while scanner.bytes[at[0]] & wanted:
            at += 1
        if not scanner.bytes[at[0]] & MULTI or not class_of_multi(scanner, at, &length) & wanted:
            return at
        at += length


cdef inline const uint8_t* last_char(const uint8_t* end) noexcept nogil:
    """The start of the character that ends at `end`."""
    end -= 1
    while (end[0] & 0xC0) == 0x80:
        end -= 1
    return end


cdef inline const uint8_t* space_end(const Scanner* scanner, const uint8_t* at, bint lines) noexcept nogil:
    r"""Match `\s+(?!\S)|\s+` at a whitespace: all of a run at a section's end, else all but its last character.

    With `lines`, `\s*[\r\n]+` goes before: up to the run's last line break, if it has one.
    """
    cdef const uint8_t* end = run_end(scanner, at, SPACE)
    cdef const uint8_t* last = end
    cdef Py_ssize_t length = 0
    if lines:
        while last > at:
            last -= 1
            if last[0] == 13 or last[0] == 10:
                return last + 1
    if class_at(scanner, end, &length) & STOP:
        return end
    last = last_char(end)
    return last if last > at else end


cdef inline const uint8_t* digits_end(const Scanner* scanner, const uint8_t* at) noexcept nogil:
    """The end of what Digits cuts off at `at`: a digit, or a run of them, which the pattern cuts again at ODD ones."""
    cdef Py_ssize_t length = 0
    cdef uint8_t found = class_at(scanner, at, &length)
    at += length
    while scanner.digit_runs and at[0] != 0xFF and class_at(scanner, at, &length) == found:
        at += length
    return at


cdef inline Py_ssize_t contraction(const uint8_t* at) noexcept nogil:
    """The length of 's 't 're 've 'm 'll 'd at the apostrophe `at`, or 0."""
    cdef uint8_t first = at[1]
    if first == c"s" or first == c"t" or first == c"m" or first == c"d":
        return 2
    if (first == c"r" or first == c"v") and at[2] == c"e":
        return 3
    return 3 if first == c"l" and at[2] == c"l" else 0


cdef inline Py_ssize_t any_case_contraction(const uint8_t* at) noexcept nogil:
    """As `contraction`, in any case; the long s (U+017F) is an s in another case."""
    cdef uint8_t[3] lower
    if at[1] == 0xC5:
        return 3 if at[2] == 0xBF else 0
    lower[0] = at[0]
    lower[1] = at[1] | 0x20
    # Behind a 0xFF nothing is read.
    lower[2] = at[2] | 0x20 if at[1] != 0xFF else 0
    return contraction(lower)


cdef inline const uint8_t* gpt2_end(const Scanner* scanner, const uint8_t* at) noexcept nogil:
    r"""Match `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`."""
    cdef Py_ssize_t length = 0
    cdef const uint8_t* first = at
    cdef uint8_t found
    if at[0] == c" ":
        first = at + 1
    elif at[0] == c"'":
        length = contraction(at)
        if length:
            return at + length
    found = class_at(scanner, first, &length)
    if found & (LETTER | NUMBER | OTHER):
        return run_end(scanner, first + length, found)
    if found & STOP and first == at:
        return digits_end(scanner, at)
    return space_end(scanner, at, False)


cdef inline const uint8_t* llama3_end(const Scanner* scanner, const uint8_t* at, int most_numbers) noexcept nogil:
    r"""Match the pattern of Llama 3.

    (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    """
    cdef Py_ssize_t length = 0, following = 0
    cdef const uint8_t* next
    cdef uint8_t found = class_at(scanner, at, &length), second
    if found & LETTER:
        return run_end(scanner, at + length, LETTER)
    if found & NUMBER:
        return numbers_end(scanner, at + length, most_numbers - 1)
    if found & STOP:
        return digits_end(scanner, at)
    if at[0] == c"'":
        following = any_case_contraction(at)
        if following:
            return at + following
    next = at + length
    second = class_at(scanner, next, &following)
    if second & LETTER and not found & NEWLINE:
        return run_end(scanner, next + following, LETTER)
    if found & OTHER:
        return run_end(scanner, run_end(scanner, next, OTHER), NEWLINE)
    if at[0] == c" " and second & OTHER:
        return run_end(scanner, run_end(scanner, next + following, OTHER), NEWLINE)
    return space_end(scanner, at, True)


cdef inline const uint8_t* numbers_end(const Scanner* scanner, const uint8_t* at, int most) noexcept nogil:
    """The end of up to `most` numbers from `at` on."""
    cdef Py_ssize_t length = 0
    while most > 0 and class_at(scanner, at, &length) & NUMBER:
        at += length
        most -= 1
    return at


cdef inline const uint8_t* piece_end(const Scanner* scanner, Pattern pattern, const uint8_t* at,
                                     const uint8_t* end) noexcept nogil:
    """The end of the piece that starts at `at`, before `end`; `pattern` is the scanner's, known when compiled."""
    if pattern == GPT2:
        return gpt2_end(scanner, at)
    if pattern == LLAMA3:
        return llama3_end(scanner, at, 3)
    if pattern == QWEN2:
        return llama3_end(scanner, at, 1)
    return end


cdef inline object scanner_init(Scanner* scanner, object pattern, object digits):
    """Fill a scanner for a BpeModel's pattern and digits; the result owns the tables that it points into."""
    import numpy as np

    from edgeonnx_ext import _regex_unicode
    from edgeonnx_ext.bpe import PATTERNS
    table = _regex_unicode.load_table()
    flags = table.stage2
    classes = flags & np.uint8(LETTER | NUMBER | SPACE)
    classes[classes == 0] = OTHER
    if digits is not None:
        odd = (flags & np.uint8(_regex_unicode.NUMERIC | NUMBER)) == _regex_unicode.NUMERIC
        classes[(flags & np.uint8(_regex_unicode.NUMERIC)) != 0] = STOP
        classes[odd] |= ODD
    cdef const uint16_t[::1] stage1 = np.ascontiguousarray(table.stage1)
    cdef const uint8_t[::1] stage2 = classes
    cdef int char
    for char in range(256):
        scanner.bytes[char] = stage2[(stage1[char >> 7] << 7) + (char & 127)] if char < 128 else MULTI
    scanner.bytes[10] |= NEWLINE
    scanner.bytes[13] |= NEWLINE
    scanner.bytes[255] = STOP
    scanner.stage1 = &stage1[0]
    scanner.stage2 = &stage2[0]
    scanner.pattern = <Pattern> <int> PATTERNS.index(pattern)
    scanner.digit_runs = digits == "runs"
    return stage1, stage2
