# A read-only table of whole words: ASCII tokens of 1 to 16 characters, without NUL, to their ids.
#
# Most words of a text that a vocabulary was made for are tokens of it: they need one look here, where a trie needs one
# for each character. Open addressing; a word's bytes, padded with zeros, are its key, so that no length is kept.

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from edgeonnx_ext._bits cimport keep_bytes
from edgeonnx_ext._trie cimport NO_TOKEN


cdef enum:
    WORD_KEY = 16


cdef struct WordEntry:
    uint64_t first  # the word's first 8 bytes; 0 marks a free place
    uint64_t second
    int32_t token_id  # NO_TOKEN in a free place


cdef struct WordTable:
    WordEntry* entries
    uint64_t places  # a power of two, a quarter of them, or more, are free


cdef inline void word_key(const uint8_t* data, size_t length, size_t readable, uint64_t* first,
                          uint64_t* second) noexcept nogil:
    """The key of a word of 1 to WORD_KEY bytes; of `data`, `readable` bytes may be read (at least `length`)."""
    first[0] = second[0] = 0
    if readable < 16:
        memcpy(first, data, min(length, <size_t> 8))
        if length > 8:
            memcpy(second, data + 8, length - 8)
        return
    memcpy(first, data, 8)
    if length <= 8:
        first[0] = keep_bytes(first[0], length)
    else:
        memcpy(second, data + 8, 8)
        second[0] = keep_bytes(second[0], length - 8)


cdef inline uint64_t lower_ascii(uint64_t word, uint64_t lower_bits) noexcept nogil:
    """Eight ASCII characters with `lower_bits` (0x20 each, or 0) added to the upper-case letters."""
    cdef uint64_t from_a = word + 0x3F3F3F3F3F3F3F3FULL  # bit 7: at least "A"
    cdef uint64_t beyond_z = word + 0x2525252525252525ULL  # bit 7: after "Z"
    return word | (((from_a & ~beyond_z) >> 2) & lower_bits)


cdef inline uint64_t word_place(const WordTable* table, uint64_t first, uint64_t second) noexcept nogil:
    """The place where the search for a key begins (the constants are odd and arbitrary)."""
    cdef uint64_t mixed = (first ^ (second * 0x9E3779B97F4A7C15ULL)) * 0xBF58476D1CE4E5B9ULL
    return (mixed ^ (mixed >> 32)) & (table.places - 1)


cdef inline WordEntry* word_entry(const WordTable* table, uint64_t place, uint64_t first,
                                  uint64_t second) noexcept nogil:
    """The entry of a key, or the free one where it belongs: linear probing from `place`."""
    while table.entries[place].first != 0 and (
        table.entries[place].first != first or table.entries[place].second != second
    ):
        place = (place + 1) & (table.places - 1)
    return &table.entries[place]


cdef inline bint words_init(WordTable* table, uint64_t words) noexcept nogil:
    """Make room for `words`; False if there is no memory."""
    cdef uint64_t index
    table.places = 16
    while 3 * table.places < 4 * words:
        table.places *= 2
    table.entries = <WordEntry*> calloc(table.places, sizeof(WordEntry))
    if table.entries == NULL:
        return False
    for index in range(table.places):
        table.entries[index].token_id = NO_TOKEN
    return True


cdef inline void words_free(WordTable* table) noexcept nogil:
    free(table.entries)
    table.entries = NULL


cdef inline void words_add(WordTable* table, const uint8_t* word, size_t length, int32_t token_id) noexcept nogil:
    """Add a word that fits; no more than words_init made room for."""
    cdef uint64_t first, second
    cdef WordEntry* entry
    word_key(word, length, length, &first, &second)
    entry = word_entry(table, word_place(table, first, second), first, second)
    entry.first = first
    entry.second = second
    entry.token_id = token_id
