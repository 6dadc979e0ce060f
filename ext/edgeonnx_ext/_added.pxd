# Added tokens: contents that are looked for in the text itself, before a model's own rules cut it.
#
# The rules are those of find_matches in Hugging Face's tokenizer/added_vocabulary.rs: the leftmost match, of those the
# longest; the search goes on behind it even if single_word discards it (so it may hide a shorter one). A tokenizer with
# normalized tokens holds two sets and searches the second in what the first leaves. The set's tokens were checked by
# sections.read_added_tokens, which refuses the combinations that need more than the text around a match.

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset

from edgeonnx_ext._text cimport Text, char_at
from edgeonnx_ext._trie cimport NO_TOKEN, Edge, Trie, trie_add, trie_edge, trie_free, trie_init


cdef enum:
    SINGLE_WORD = 1
    LEFT_STRIP = 2
    RIGHT_STRIP = 4


cdef struct AddedRule:
    int32_t token_id
    int32_t flags


cdef struct Match:
    Py_ssize_t start  # whitespace that the token strips is part of it
    Py_ssize_t end
    int32_t token_id


# Read-only while texts are tokenized. A zeroed struct is an empty set.
cdef struct AddedTokens:
    Trie trie  # its tokens are indices of `rules`
    AddedRule* rules
    Py_ssize_t count
    uint8_t[256] begins  # whether a token begins with a character of this low byte
    uint32_t only  # the one character that all tokens begin with, or 0
    uint8_t* word_bits  # see _word_chars.word_bits; NULL if no token asks


cdef inline bint is_white(uint32_t char) noexcept nogil:
    """Unicode's White_Space; see _word_chars.WHITESPACE."""
    if char < 0x1680:
        return char == 32 or 9 <= char <= 13 or char == 0x85 or char == 0xA0
    return (
        0x2000 <= char <= 0x200A or char == 0x1680 or char == 0x2028 or char == 0x2029 or char == 0x202F
        or char == 0x205F or char == 0x3000
    )


cdef inline bint is_word(const AddedTokens* added, uint32_t char) noexcept nogil:
    return (added.word_bits[char >> 3] >> (char & 7)) & 1


cdef inline Py_ssize_t skip_plain(const AddedTokens* added, const Text* text, Py_ssize_t start,
                                  Py_ssize_t end) noexcept nogil:
    """The next position in [start, end) where a token may begin, or `end`."""
    cdef const uint8_t* chars = <const uint8_t*> text.data
    cdef const uint8_t* found
    if text.kind != 1:
        while start < end and not added.begins[char_at(text, start) & 0xFF]:
            start += 1
        return start
    if added.only and start < end:
        found = <const uint8_t*> memchr(chars + start, <int> (added.only & 0xFF), end - start)
        return end if found == NULL else found - chars
    while start < end and not added.begins[chars[start]]:
        start += 1
    return start


cdef inline Py_ssize_t longest_added(const AddedTokens* added, const Text* text, Py_ssize_t start, Py_ssize_t end,
                                     int32_t* rule) noexcept nogil:
    """The end of the longest token that begins at `start`, or `start`."""
    cdef uint32_t node = 0
    cdef const Edge* edge
    cdef Py_ssize_t index, longest = start
    for index in range(start, end):
        edge = trie_edge(&added.trie, node, char_at(text, index))
        node = edge.child
        if node == 0:
            break
        if edge.token_id != NO_TOKEN:
            rule[0] = edge.token_id
            longest = index + 1
    return longest


cdef inline bint next_added(const AddedTokens* added, const Text* text, Py_ssize_t start, Py_ssize_t end,
                            Match* match) noexcept nogil:
    """Find the next added token in [start, end); False if there is none.

    `end` is the end of the section that is searched (the whole text, or what the first set left), `start` is its start,
    or the end of the match before.
    """
    cdef Py_ssize_t first, last, limit = start
    cdef int32_t rule = 0, flags
    if added.count == 0:
        return False
    while True:
        first = skip_plain(added, text, start, end)
        if first >= end:
            return False
        last = longest_added(added, text, first, end, &rule)
        if last == first:
            start = first + 1
            continue
        flags = added.rules[rule].flags
        if flags & SINGLE_WORD and (
            (first > 0 and is_word(added, char_at(text, first - 1)))
            or (last < end and is_word(added, char_at(text, last)))
        ):
            start = last
            continue
        while flags & LEFT_STRIP and first > limit and is_white(char_at(text, first - 1)):
            first -= 1
        while flags & RIGHT_STRIP and last < end and is_white(char_at(text, last)):
            last += 1
        match.start = first
        match.end = last
        match.token_id = added.rules[rule].token_id
        return True


cdef inline void added_free(AddedTokens* added) noexcept:
    """Free what a set holds; it is empty then."""
    trie_free(&added.trie)
    free(added.rules)
    free(added.word_bits)
    memset(added, 0, sizeof(AddedTokens))


cdef inline object added_init(AddedTokens* added, object tokens):
    """Fill a zeroed set from a tuple of sections.AddedToken; free it with added_free, also after a MemoryError."""
    cdef uint32_t first
    cdef Py_ssize_t index
    added.rules = <AddedRule*> malloc((len(tokens) + 1) * sizeof(AddedRule))
    if added.rules == NULL or not trie_init(&added.trie):
        raise MemoryError
    for index, token in enumerate(tokens):
        if not trie_add(&added.trie, token.content, <int32_t> index):
            raise MemoryError
        if token.single_word:
            added_set_words(added)
        first = ord(token.content[0])
        added.only = first if index == 0 or added.only == first else 0
        added.begins[first & 0xFF] = 1
        added.rules[index].token_id = token.token_id
        added.rules[index].flags = (
            SINGLE_WORD * token.single_word + LEFT_STRIP * token.lstrip + RIGHT_STRIP * token.rstrip
        )
        added.count = index + 1


cdef inline object added_set_words(AddedTokens* added):
    """Copy the table of word characters, once."""
    cdef bytes table
    if added.word_bits == NULL:
        from edgeonnx_ext._word_chars import word_bits
        table = word_bits()
        added.word_bits = <uint8_t*> malloc(len(table))
        if added.word_bits == NULL:
            raise MemoryError
        memcpy(added.word_bits, <const uint8_t*> table, len(table))
