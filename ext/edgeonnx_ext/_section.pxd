# A section of a text (what stands between added tokens) as UTF-8 in the work memory. A stop byte and room behind it
# spare the loops over it their bounds.

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from edgeonnx_ext._added cimport AddedTokens
from edgeonnx_ext._arrays cimport Bytes, Chars, Ids, reserve_bytes, reserve_ids
from edgeonnx_ext._cache cimport WordCache, cache_free, cache_init
from edgeonnx_ext._merge cimport Merges, MergeWork, free_symbols
from edgeonnx_ext._nfc cimport NfcRules
from edgeonnx_ext._pieces cimport Piece, PieceCache, pieces_free, pieces_init
from edgeonnx_ext._scan cimport Scanner
from edgeonnx_ext._starts cimport Digits
from edgeonnx_ext._text cimport Text, char_at


cdef enum:
    BATCH = 32  # pieces whose places in the cache are on their way at once
    PADDING = 64  # bytes behind a section that can be read
    MOST_BYTES = 0x7FFFFFFF - 64  # of a section
    PIECE_PAIRS = 65536  # 4 MiB, of which only what is used is ever touched
    WORD_PAIRS = 8192  # 1 MiB, likewise


# Read-only while texts are tokenized: several threads share them.
cdef struct Rules:
    Scanner scanner
    Digits digits
    Merges merges
    AddedTokens plain  # not normalized: looked for first
    bint normalizes  # by `nfc`, what the plain ones leave
    NfcRules nfc
    AddedTokens normalized  # looked for in what the plain ones leave
    bint prefix_space
    bint ignore_merges
    bint trim_offsets
    bint trim_keeps_prefix


# A piece whose ids are wanted soon.
cdef struct Pending:
    uint64_t[4] key
    const uint8_t* start
    size_t length
    Piece* place


cdef struct Words:
    uint64_t* items
    size_t room


cdef struct Work:
    Chars normal  # what NFC makes of what stands between plain tokens
    Ids origins  # the text's character of each of its characters
    Bytes section
    Ids positions  # the text's character of each byte of the section
    Words starts  # of the section's pieces, if it is ASCII
    size_t word  # of `starts`, at which the next piece is looked for
    uint64_t bits  # what is left of that word
    Pending[32] pending
    MergeWork merge
    PieceCache pieces
    WordCache words  # pieces of more bytes or ids
    uint8_t[64] mask  # 32 bytes of ones, 32 of zeros: from 32 - n on a mask of n bytes


cdef inline void section_free(Work* work) noexcept nogil:
    free(work.normal.items)
    free(work.origins.items)
    free(work.section.items)
    free(work.positions.items)
    free(work.starts.items)
    free_symbols(&work.merge)
    pieces_free(&work.pieces)
    cache_free(&work.words)
    free(work)


cdef inline Work* section_new() noexcept nogil:
    """New work memory, or NULL."""
    cdef Work* work = <Work*> calloc(1, sizeof(Work))
    if work == NULL:
        return NULL
    memset(work.mask, 0xFF, 32)
    if not pieces_init(&work.pieces, PIECE_PAIRS) or not cache_init(&work.words, WORD_PAIRS):
        section_free(work)
        return NULL
    return work


cdef inline bint reserve_words(Words* words, size_t count) noexcept nogil:
    """Make room for `count` words; False if there is no memory."""
    cdef void* moved
    if count <= words.room:
        return True
    moved = realloc(words.items, 2 * count * sizeof(uint64_t))
    if moved == NULL:
        return False
    words.items = <uint64_t*> moved
    words.room = 2 * count
    return True


cdef inline uint8_t* encode(const Text* text, Py_ssize_t start, Py_ssize_t end, uint8_t* out) noexcept nogil:
    """Write text[start:end], which has no surrogates, as UTF-8; return the end of what was written."""
    cdef Py_ssize_t index
    cdef uint32_t char
    if text.ascii:
        memcpy(out, <const uint8_t*> text.data + start, end - start)
        return out + (end - start)
    for index in range(start, end):
        char = char_at(text, index)
        if char < 0x80:
            out[0] = <uint8_t> char
            out += 1
        elif char < 0x800:
            out[0] = <uint8_t> (0xC0 | char >> 6)
            out[1] = <uint8_t> (0x80 | (char & 0x3F))
            out += 2
        elif char < 0x10000:
            out[0] = <uint8_t> (0xE0 | char >> 12)
            out[1] = <uint8_t> (0x80 | (char >> 6 & 0x3F))
            out[2] = <uint8_t> (0x80 | (char & 0x3F))
            out += 3
        else:
            out[0] = <uint8_t> (0xF0 | char >> 18)
            out[1] = <uint8_t> (0x80 | (char >> 12 & 0x3F))
            out[2] = <uint8_t> (0x80 | (char >> 6 & 0x3F))
            out[3] = <uint8_t> (0x80 | (char & 0x3F))
            out += 4
    return out


cdef inline Py_ssize_t fill_section(const Rules* rules, Work* work, const Text* text, Py_ssize_t start,
                                    Py_ssize_t end) noexcept nogil:
    """Encode text[start:end], which is not empty, with its prefix space and padding; its bytes, or -1: no memory."""
    cdef Py_ssize_t widest = 1 if text.ascii else text.kind + (text.kind < 4)
    cdef uint8_t* out
    work.section.count = 0
    if not reserve_bytes(&work.section, widest * (end - start) + 1 + PADDING):
        return -1
    out = work.section.items
    if rules.prefix_space and char_at(text, start) != c" ":
        out[0] = c" "
        out += 1
    out = encode(text, start, end, out)
    memset(out, 0xFF, PADDING)
    if out - work.section.items > MOST_BYTES:
        return -1
    return out - work.section.items


cdef inline bint note_positions(Work* work, size_t length, const Text* text, Py_ssize_t start,
                                const int32_t* origins) noexcept nogil:
    """Note the character of each byte of the section that begins at the text's character `start`; False: no memory.

    The prefix space counts as part of the character behind it, as in the library. `origins`, unless NULL, tells which
    character each one of the text stands for.
    """
    cdef bint prefixed = work.section.items[0] == c" " and char_at(text, start) != c" "
    cdef int32_t position = <int32_t> start - 1 - prefixed
    cdef size_t index
    if not reserve_ids(&work.positions, length):
        return False
    for index in range(length):
        position += (work.section.items[index] & 0xC0) != 0x80
        work.positions.items[index] = position
    if prefixed:
        work.positions.items[0] = <int32_t> start
    if origins != NULL:
        for index in range(length):
            work.positions.items[index] = origins[work.positions.items[index]]
    return True


cdef inline uint64_t load(const uint8_t* data) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, data, 8)
    return value


cdef inline void load_key(uint64_t* key, const uint8_t* piece, const uint8_t* mask, size_t length) noexcept nogil:
    """The bytes of a piece of at most CACHE_KEY bytes, padded with zeros; 32 bytes can be read from `piece` on."""
    mask += 32 - length
    key[0] = load(piece) & load(mask)
    key[1] = load(piece + 8) & load(mask + 8)
    if length > 16:
        key[2] = load(piece + 16) & load(mask + 16)
        key[3] = load(piece + 24) & load(mask + 24)
    else:
        key[2] = key[3] = 0
