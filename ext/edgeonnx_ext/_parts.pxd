# Parts of a text: what stands between two characters that end a word whatever surrounds them (whitespace, punctuation).
#
# The ids of a part depend on nothing else, so they are looked up by the part as it is written: in the table of whole
# words, then in the cache of the work memory. Only what neither knows takes the steps of _bert.pxd. In a Latin-1 text
# the parts are found some dozens at a time, so that the processor loads their places in the table all at once.

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from edgeonnx_ext._arrays cimport Ids, reserve_ids
from edgeonnx_ext._bert cimport (
    ALONE, SPACE, Action, Rules, Work, add_char, end_word, flush, record_index,
)
from edgeonnx_ext._bits cimport fetch_ahead, letter_bits, letter_run
from edgeonnx_ext._cache cimport (
    CACHE_IDS, CACHE_KEY, CACHE_OTHER, CacheLine, cache_find, cache_key, cache_store,
)
from edgeonnx_ext._text cimport Text, char_at
from edgeonnx_ext._trie cimport NO_TOKEN, Edge, trie_edge
from edgeonnx_ext._words cimport WORD_KEY, WordEntry, lower_ascii, word_entry, word_key, word_place


cdef enum:
    WIDE_KEY = CACHE_KEY // 2  # most UTF-16 units of a part that is cached
    BATCH = 32  # parts that are looked up together


# Classes of the Latin-1 characters; those of a part are joined by "or".
cdef enum:
    APART = 0  # ends a part: whitespace, or a word of its own
    PLAIN = 1  # ASCII, belongs to the word, and at most becomes lower-case
    OTHER = 2


# A part of a Latin-1 text, or a character that is a word of its own.
cdef struct Part:
    uint64_t first  # key in the table of words
    uint64_t second
    uint64_t place  # where the search for it begins
    uint32_t start
    uint32_t length
    int32_t token_id  # of a character alone; NO_TOKEN for a part
    bint plain  # whether it has a key


cdef inline int32_t alone_id(const Rules* rules, uint32_t char) noexcept nogil:
    """The token of the word `char` (after normalization)."""
    cdef const Edge* edge = trie_edge(&rules.vocab, 0, char)
    if edge.child == 0 or edge.token_id == NO_TOKEN or rules.max_word_chars == 0:
        return rules.unk_id
    return edge.token_id


cdef inline void add_slowly(const Rules* rules, Work* work, const Text* text, Py_ssize_t start,
                            Py_ssize_t end) noexcept nogil:
    """Take every step for the characters of [start, end), a part of the text or a section."""
    cdef Py_ssize_t index
    for index in range(start, end):
        add_char(rules, work, char_at(text, index), <uint32_t> index)
    flush(rules, work)
    end_word(rules, work)


cdef inline void add_cached(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                            const uint64_t* key, size_t key_length) noexcept nogil:
    """Append the ids of the part [start, end), from the cache if it knows the key; there is room for CACHE_IDS."""
    cdef const CacheLine* line = cache_find(&work.cache, key, key_length)
    cdef Ids* ids = work.ids
    cdef size_t before = ids.count
    if line != NULL:
        memcpy(ids.items + ids.count, line.ids, sizeof(line.ids))
        ids.count += line.id_count
        return
    add_slowly(rules, work, text, start, end)
    if not work.out_of_memory:
        cache_store(&work.cache, key, key_length, ids.items + before, ids.count - before)


cdef inline void add_bytes(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                           const uint8_t* data) noexcept nogil:
    """Append the ids of the part [start, end), whose characters are the bytes of `data`; room as for add_cached."""
    cdef size_t length = end - start
    cdef uint64_t[4] key
    if length > CACHE_KEY:
        add_slowly(rules, work, text, start, end)
        return
    cache_key(key, data, length)
    add_cached(rules, work, text, start, end, key, length)


cdef inline void set_key(const Rules* rules, Part* part, const uint8_t* data, size_t readable) noexcept nogil:
    """Make the key of a part of PLAIN characters, of at most WORD_KEY, and have its place loaded."""
    word_key(data, part.length, readable, &part.first, &part.second)
    part.first = lower_ascii(part.first, rules.lower_bits)
    part.second = lower_ascii(part.second, rules.lower_bits)
    part.place = word_place(&rules.words, part.first, part.second)
    fetch_ahead(&rules.words.entries[part.place])


cdef inline void add_plain(const Rules* rules, Work* work, const Text* text, const Part* part) noexcept nogil:
    """Append the ids of a part that has a key; room as for add_cached."""
    cdef const WordEntry* entry = word_entry(&rules.words, part.place, part.first, part.second)
    cdef uint64_t[4] key
    work.ids.items[work.ids.count] = entry.token_id
    if entry.token_id != NO_TOKEN:
        work.ids.count += 1
        return
    key[0] = part.first
    key[1] = part.second
    key[2] = 0
    key[3] = 0
    add_cached(rules, work, text, part.start, part.start + part.length, key, part.length)


cdef inline size_t find_parts(const Rules* rules, const Text* text, Py_ssize_t* position, Py_ssize_t end,
                              Part* parts) noexcept nogil:
    """Find up to BATCH parts of a Latin-1 text from `position` on, which moves behind them; their number."""
    cdef const uint8_t* chars = <const uint8_t*> text.data
    cdef Py_ssize_t index = position[0], base = index - 64
    cdef uint64_t bits = 0
    cdef size_t count = 0, run
    cdef Part* part
    while count < BATCH and index < end:
        part = &parts[count]
        run = 64 if index >= base + 64 else letter_run(bits >> (index - base))
        # Letters up to the end of the 64 that were looked at: the next 64 begin here.
        if index + <Py_ssize_t> run >= base + 64 and index > base:
            base = index
            bits = letter_bits(chars + base, min(<size_t> (end - base), <size_t> 64))
            run = letter_run(bits)
        part.start = <uint32_t> index
        part.token_id = NO_TOKEN
        part.plain = run <= WORD_KEY
        index += run
        if index < end and rules.part_class[chars[index]] != APART:
            part.plain = False
            while index < end and rules.part_class[chars[index]] != APART:
                index += 1
        part.length = <uint32_t> index - part.start
        if part.length == 0:
            part.token_id = rules.alone_id[chars[index]]
            count += part.token_id != NO_TOKEN
            index += 1
            continue
        if part.plain:
            set_key(rules, part, chars + part.start, text.length - part.start)
        count += 1
        if index < end and rules.is_space[chars[index]]:
            index += 1
    position[0] = index
    return count


cdef inline void add_narrow(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                            size_t target) noexcept nogil:
    """Append the ids of a section of a Latin-1 text, or at least so many that there are `target`."""
    cdef const uint8_t* chars = <const uint8_t*> text.data
    cdef Ids* ids = work.ids
    cdef Py_ssize_t position = start
    cdef size_t index, count
    cdef Part[32] parts
    cdef Part* part
    while position < end and ids.count < target:
        count = find_parts(rules, text, &position, end, parts)
        for index in range(count):
            part = &parts[index]
            if ids.room - ids.count < CACHE_IDS and not reserve_ids(ids, CACHE_IDS):
                work.out_of_memory = True
                return
            if part.token_id != NO_TOKEN:
                ids.items[ids.count] = part.token_id
                ids.count += 1
            elif part.plain:
                add_plain(rules, work, text, part)
            else:
                add_bytes(rules, work, text, part.start, part.start + part.length, chars + part.start)


cdef inline const Action* action_of(const Rules* rules, uint32_t char) noexcept nogil:
    return &rules.actions[record_index(rules, char)]


cdef inline void add_wide_part(const Rules* rules, Work* work, const Text* text, Py_ssize_t start,
                               Py_ssize_t end) noexcept nogil:
    """Append the ids of the part [start, end) of any text; longer ones are not cached."""
    cdef uint8_t[32] data
    cdef uint16_t[16] units
    cdef uint64_t[4] key
    cdef Part part
    cdef uint32_t char, highest = 0
    cdef uint8_t classes = 0
    cdef Py_ssize_t index, length = end - start
    if length > WIDE_KEY:
        add_slowly(rules, work, text, start, end)
        return
    memset(data, 0, sizeof(data))
    for index in range(length):
        char = char_at(text, start + index)
        highest |= char
        data[index] = <uint8_t> char
        units[index] = <uint16_t> char
        classes |= rules.part_class[char & 0xFF]
    if highest <= 0xFF and classes == PLAIN:
        part.start = <uint32_t> start
        part.length = <uint32_t> length
        set_key(rules, &part, data, sizeof(data))
        add_plain(rules, work, text, &part)
    elif highest <= 0xFF:
        add_bytes(rules, work, text, start, end, data)
    elif highest <= 0xFFFF:
        cache_key(key, <const uint8_t*> units, 2 * length)
        add_cached(rules, work, text, start, end, key, 2 * length + CACHE_OTHER)
    else:
        add_slowly(rules, work, text, start, end)


cdef inline void add_wide(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                          size_t target) noexcept nogil:
    """As add_narrow, for any text."""
    cdef Ids* ids = work.ids
    cdef Py_ssize_t index = start, first
    cdef const Action* action
    cdef uint32_t char
    while index < end and ids.count < target:
        if ids.room - ids.count < CACHE_IDS and not reserve_ids(ids, CACHE_IDS):
            work.out_of_memory = True
            return
        first = index
        while index < end:
            char = char_at(text, index)
            action = action_of(rules, char)
            if action.kind == SPACE or action.kind == ALONE:
                break
            index += 1
        if index > first:
            add_wide_part(rules, work, text, first, index)
            continue
        if action.kind == ALONE:
            ids.items[ids.count] = alone_id(rules, action.char if action.char else char)
            ids.count += 1
        index += 1
