# Unicode normalization form C (UAX #15) of a piece of text; what each thing means stands in reference/nfc.py.
#
# Most characters are settled: starters that NFC never changes, and that never join what stands before them. A text is
# cut before each of them. A piece of one settled character is copied; any other is decomposed, sorted and composed.

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from edgeonnx_ext._arrays cimport Chars, Ids, push_char, push_id, reserve_chars
from edgeonnx_ext._text cimport Text, char_at


cdef enum:
    LOWEST_UNSETTLED = 0x300  # U+0300, the first combining mark: all characters below are settled
    HANGUL_FLAG = 64  # HANGUL in _unicode.py


# A record of the table that _unicode.py reads.
cdef struct NfcRecord:
    uint8_t flags
    uint8_t combining
    uint8_t nfd_length
    uint8_t lower_length
    uint16_t nfd_start
    uint16_t lower_start


# A place of the hash table of compositions; key 0 marks a free one.
cdef struct NfcPair:
    uint64_t key
    uint32_t composed


# Read-only once loaded: several threads may share it.
cdef struct NfcRules:
    const uint16_t* stage1
    const uint16_t* stage2
    const NfcRecord* records
    const uint32_t* pool
    int block_shift
    const uint8_t* unsettled  # for each code point below `unsettled_end`: bit 0 may change, bit 1 nonstarter
    uint32_t unsettled_end
    NfcPair* pairs
    uint64_t pair_places  # a power of two


# A character on the way, in one number: class (8 bits), whether it is a further one of a decomposition (1 bit), code
# point (21 bits).
cdef enum:
    FURTHER = 1 << 21
    CODE_POINT = (1 << 21) - 1
    CLASS_SHIFT = 22


# --- the table --------------------------------------------------------------------------------------------------------

cdef inline uint64_t nfc_key(uint32_t first, uint32_t second) noexcept nogil:
    return (<uint64_t> first << 21 | second) + 1


cdef inline uint64_t nfc_place(const NfcRules* rules, uint64_t key) noexcept nogil:
    """The place of `key`, or the free place where it belongs (Fibonacci hashing, linear probing)."""
    cdef uint64_t place = ((key * 0x9E3779B97F4A7C15ULL) >> 32) & (rules.pair_places - 1)
    while rules.pairs[place].key != key and rules.pairs[place].key != 0:
        place = (place + 1) & (rules.pair_places - 1)
    return place


cdef inline const void* nfc_memory(object array):
    """The memory of an array."""
    cdef size_t address = array.ctypes.data
    return <const void*> address


cdef inline object nfc_load(NfcRules* rules):
    """Fill `rules` (zeroed before), and return the object that must outlive them; free them with nfc_free."""
    from edgeonnx_ext import _nfc_unicode, _unicode

    table, compositions = _unicode.load_table(), _nfc_unicode.load_table()
    unsettled = _nfc_unicode.unsettled(compositions)
    cdef uint64_t place, key
    rules.stage1 = <const uint16_t*> nfc_memory(table.stage1)
    rules.stage2 = <const uint16_t*> nfc_memory(table.stage2)
    rules.records = <const NfcRecord*> nfc_memory(table.records)
    rules.pool = <const uint32_t*> nfc_memory(table.pool)
    rules.block_shift = table.block_shift
    rules.unsettled = <const uint8_t*> nfc_memory(unsettled)
    rules.unsettled_end = <uint32_t> len(unsettled)
    rules.pair_places = 64
    while rules.pair_places < 2 * <uint64_t> len(compositions.first):
        rules.pair_places *= 2
    rules.pairs = <NfcPair*> calloc(rules.pair_places, sizeof(NfcPair))
    if rules.pairs == NULL:
        raise MemoryError(f"expected memory for {rules.pair_places} compositions, found none")
    for (first, second), composed in compositions.pairs().items():
        key = nfc_key(<uint32_t> ord(first), <uint32_t> ord(second))
        place = nfc_place(rules, key)
        rules.pairs[place].key = key
        rules.pairs[place].composed = <uint32_t> ord(composed)
    return table, unsettled


cdef inline void nfc_free(NfcRules* rules) noexcept nogil:
    free(rules.pairs)
    rules.pairs = NULL


cdef inline uint8_t nfc_unsettled(const NfcRules* rules, uint32_t char) noexcept nogil:
    """0 for a settled character; else bit 0: may change; bit 1: nonstarter."""
    if char < LOWEST_UNSETTLED or char >= rules.unsettled_end:
        return 0
    return rules.unsettled[char]


cdef inline const NfcRecord* nfc_record(const NfcRules* rules, uint32_t char) noexcept nogil:
    cdef size_t block = rules.stage1[char >> rules.block_shift]
    return &rules.records[rules.stage2[(block << rules.block_shift) + (char & ((1U << rules.block_shift) - 1))]]


cdef inline uint32_t nfc_composite(const NfcRules* rules, uint32_t first, uint32_t second) noexcept nogil:
    """The primary composite of two characters, or 0."""
    # Unsigned numbers below the start of a range become large ones, so one comparison tests both its ends.
    cdef uint32_t syllable = first - 0xAC00
    if first - 0x1100 < 19 and second - 0x1161 < 21:
        return 0xAC00 + ((first - 0x1100) * 21 + (second - 0x1161)) * 28
    if syllable < 11172 and syllable % 28 == 0 and second - 0x11A8 < 27:
        return first + (second - 0x11A7)
    return rules.pairs[nfc_place(rules, nfc_key(first, second))].composed


# --- one piece --------------------------------------------------------------------------------------------------------

cdef inline bint nfc_push(const NfcRules* rules, Chars* run, uint32_t char, uint32_t further) noexcept nogil:
    """Append a character that does not decompose; False if there is no memory."""
    cdef uint32_t combining = nfc_record(rules, char).combining
    return push_char(run, combining << CLASS_SHIFT | further | char)


cdef inline bint nfc_decompose(const NfcRules* rules, Chars* run, uint32_t char) noexcept nogil:
    """Append the decomposition of a character; False if there is no memory."""
    cdef const NfcRecord* record = nfc_record(rules, char)
    cdef uint32_t index = char - 0xAC00
    cdef size_t part
    if record.flags & HANGUL_FLAG:
        return (
            nfc_push(rules, run, 0x1100 + index // 588, 0)
            and nfc_push(rules, run, 0x1161 + (index % 588) // 28, FURTHER)
            and (index % 28 == 0 or nfc_push(rules, run, 0x11A7 + index % 28, FURTHER))
        )
    if record.nfd_length == 0:
        return nfc_push(rules, run, char, 0)
    for part in range(record.nfd_length):
        if not nfc_push(rules, run, rules.pool[record.nfd_start + part], FURTHER if part else 0):
            return False
    return True


cdef inline bint nfc_sort(uint32_t* items, size_t count, Chars* spare) noexcept nogil:
    """Sort marks by class, stably; False if there is no memory. A counting sort, as a text may be all marks."""
    cdef size_t[256] starts
    cdef size_t index, before = 0, here
    spare.count = 0
    if not reserve_chars(spare, count):
        return False
    memset(starts, 0, sizeof(starts))
    for index in range(count):
        spare.items[index] = items[index]
        starts[items[index] >> CLASS_SHIFT] += 1
    for index in range(<size_t> 256):
        here = starts[index]
        starts[index] = before
        before += here
    for index in range(count):
        items[starts[spare.items[index] >> CLASS_SHIFT]] = spare.items[index]
        starts[spare.items[index] >> CLASS_SHIFT] += 1
    return True


cdef inline bint nfc_order(Chars* run, Chars* spare) noexcept nogil:
    """Put a decomposed piece into canonical order; False if there is no memory."""
    cdef size_t index = 0, start
    cdef bint sorted_already
    while index < run.count:
        start = index
        sorted_already = True
        while index < run.count and run.items[index] >> CLASS_SHIFT:
            if index > start and run.items[index - 1] >> CLASS_SHIFT > run.items[index] >> CLASS_SHIFT:
                sorted_already = False
            index += 1
        if not sorted_already and not nfc_sort(run.items + start, index - start, spare):
            return False
        index += 1  # past the starter
    return True


cdef inline bint nfc_compose(const NfcRules* rules, const Chars* run, Py_ssize_t start, Chars* out,
                             Ids* positions) noexcept nogil:
    """Append the composition of a piece that starts at `start` in its text; False if there is no memory.

    Until the end `positions` holds the changes of the number of characters.
    """
    cdef size_t index, begin = out.count, begin_positions = 0, starter = 0
    cdef bint has_starter = False
    cdef uint32_t combining, before = 0, composed
    cdef int32_t consumed = <int32_t> start, change
    if positions != NULL:
        begin_positions = positions.count
    for index in range(run.count):
        combining = run.items[index] >> CLASS_SHIFT
        change = 1 if run.items[index] & FURTHER else 0
        composed = 0
        if has_starter and (before == 0 or before < combining):
            composed = nfc_composite(rules, out.items[starter], run.items[index] & CODE_POINT)
        if composed:
            out.items[starter] = composed
            if positions != NULL:
                positions.items[begin_positions + starter - begin] += change - 1
            continue
        if not push_char(out, run.items[index] & CODE_POINT):
            return False
        if positions != NULL and not push_id(positions, change):
            return False
        before = combining
        if combining == 0:
            has_starter = True
            starter = out.count - 1
    if positions != NULL:
        for index in range(begin_positions, positions.count):
            change = positions.items[index]
            positions.items[index] = consumed - 1 if change > 0 else consumed
            consumed += 1 - change
    return True


# --- a text -----------------------------------------------------------------------------------------------------------

cdef inline bint nfc_is_same(const NfcRules* rules, const Text* text, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Whether a quick look tells that NFC leaves text[start:end] as it is; False: it may or may not."""
    cdef Py_ssize_t index
    cdef uint32_t char
    cdef uint8_t unsettled, combining, before = 0
    if text.kind == 1:
        return True
    for index in range(start, end):
        char = char_at(text, index)
        unsettled = nfc_unsettled(rules, char)
        if unsettled == 0:
            before = 0
            continue
        if unsettled & 1:
            return False
        combining = nfc_record(rules, char).combining
        if before > combining:
            return False
        before = combining
    return True


cdef inline bint nfc_text(const NfcRules* rules, const Text* text, Py_ssize_t start, Py_ssize_t end, Chars* out,
                          Ids* positions) noexcept nogil:
    """Append NFC of text[start:end] to `out`, and, unless NULL, to `positions` the index in text of each character's
    original, which must be less than 2**31. False if there is no memory.
    """
    cdef Chars run, spare
    cdef Py_ssize_t index = start, begin, place
    cdef bint room = True
    run.items = spare.items = NULL
    run.count = run.room = spare.count = spare.room = 0
    while room and index < end:
        begin = index
        index += 1
        while index < end and nfc_unsettled(rules, char_at(text, index)):
            index += 1
        if index == begin + 1 and not nfc_unsettled(rules, char_at(text, begin)):
            room = push_char(out, char_at(text, begin))
            room = room and (positions == NULL or push_id(positions, <int32_t> begin))
            continue
        run.count = 0
        for place in range(begin, index):
            room = room and nfc_decompose(rules, &run, char_at(text, place))
        room = room and nfc_order(&run, &spare) and nfc_compose(rules, &run, begin, out, positions)
    free(run.items)
    free(spare.items)
    return room
