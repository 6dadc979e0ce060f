# Byte-pair merges: the bytes of a piece to ids, always the pair of lowest rank first, of equal ones the leftmost.
#
# A rank belongs to one pair, so that "a pair's rank is still the one noted" is enough to know that a note is not stale.
# Short pieces look for the lowest rank anew after each merge; long ones keep a heap, so that no input takes more than
# n log n steps.

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from edgeonnx_ext._cache cimport CACHE_KEY


cdef enum:
    NO_ID = -1
    SHORT = 32  # most bytes of a short piece; CACHE_KEY, so that what the cache does not take is long


cdef enum:
    NO_RANK = 0xFFFFFFFF


cdef struct PairSlot:
    uint64_t key  # left << 32 | right, plus 1; 0 marks a free place
    uint32_t rank
    int32_t merged


cdef struct WordSlot:
    uint32_t check  # upper half of the hash
    uint32_t start  # in `spelling`
    uint32_t length  # 0 marks a free place
    int32_t token_id


# Read-only while texts are tokenized.
cdef struct Merges:
    PairSlot* pairs
    uint64_t pair_mask
    int32_t* merged  # of each rank
    uint32_t* byte_ranks  # rank of the pair of two bytes, at left << 8 | right
    int32_t[256] byte_ids  # NO_ID: the vocabulary lacks this byte, and it vanishes
    uint8_t[256] byte_widths  # bytes of UTF-8 of the character that stands for the byte
    WordSlot* words  # pieces that are one token
    uint64_t word_mask
    uint8_t* spelling  # the bytes of all words


# A part of a long piece.
cdef struct Symbol:
    int32_t id
    int32_t previous  # -1: none
    int32_t next
    int32_t width  # bytes of UTF-8 of the characters that stand for its bytes; 0: merged into the one before
    uint32_t rank  # of the pair with the next


cdef struct MergeWork:
    Symbol* symbols
    uint64_t* heap  # rank << 32 | place of the left symbol
    size_t heap_count
    size_t room  # of symbols; the heap has twice as much


cdef inline uint64_t pair_place(const Merges* merges, uint64_t key) noexcept nogil:
    """The place of a pair, or the free place where it belongs."""
    cdef uint64_t place = ((key * 0x9E3779B97F4A7C15ULL) >> 32) & merges.pair_mask
    while merges.pairs[place].key != key and merges.pairs[place].key != 0:
        place = (place + 1) & merges.pair_mask
    return place


cdef inline uint32_t pair_rank(const Merges* merges, int32_t left, int32_t right) noexcept nogil:
    """The rank of a pair of ids, or NO_RANK."""
    cdef uint64_t key = ((<uint64_t> <uint32_t> left << 32) | <uint32_t> right) + 1
    cdef uint64_t place = pair_place(merges, key)
    return merges.pairs[place].rank  # a free place has NO_RANK


cdef inline size_t merge_short(const Merges* merges, const uint8_t* piece, size_t length, int32_t* ids) noexcept nogil:
    """Write the ids of a piece of at most SHORT bytes to `ids` (room for SHORT); return how many."""
    cdef uint32_t[32] ranks
    cdef uint8_t[32] kept
    cdef size_t count = 0, index, best, following
    cdef uint32_t lowest
    for index in range(length):
        kept[count] = piece[index]
        ids[count] = merges.byte_ids[piece[index]]
        count += ids[count] != NO_ID
    if count == 0:
        return 0
    for index in range(count - 1):
        ranks[index] = merges.byte_ranks[<size_t> kept[index] << 8 | kept[index + 1]]
    ranks[count - 1] = <uint32_t> NO_RANK
    while True:
        lowest = <uint32_t> NO_RANK
        best = 0
        for index in range(count - 1):
            if ranks[index] < lowest:
                lowest = ranks[index]
                best = index
        if lowest == <uint32_t> NO_RANK:
            return count
        ids[best] = merges.merged[lowest]
        count -= 1
        for following in range(best + 1, count):
            ids[following] = ids[following + 1]
            ranks[following] = ranks[following + 1]
        ranks[best] = pair_rank(merges, ids[best], ids[best + 1]) if best + 1 < count else <uint32_t> NO_RANK
        if best:
            ranks[best - 1] = pair_rank(merges, ids[best - 1], ids[best])


cdef inline void heap_push(MergeWork* work, uint64_t item) noexcept nogil:
    cdef size_t place = work.heap_count, parent
    work.heap_count += 1
    while place:
        parent = (place - 1) >> 1
        if work.heap[parent] <= item:
            break
        work.heap[place] = work.heap[parent]
        place = parent
    work.heap[place] = item


cdef inline uint64_t heap_pop(MergeWork* work) noexcept nogil:
    cdef uint64_t top = work.heap[0], item
    cdef size_t place = 0, child = 1, count = work.heap_count - 1
    work.heap_count = count
    item = work.heap[count]
    while child < count:
        if child + 1 < count and work.heap[child + 1] < work.heap[child]:
            child += 1
        if work.heap[child] >= item:
            break
        work.heap[place] = work.heap[child]
        place = child
        child = 2 * place + 1
    work.heap[place] = item
    return top


cdef inline void note_pair(const Merges* merges, MergeWork* work, int32_t place) noexcept nogil:
    """Look up the pair that begins at `place`, and put it on the heap if it merges."""
    cdef Symbol* symbol = work.symbols + place
    symbol.rank = <uint32_t> NO_RANK
    if symbol.next >= 0:
        symbol.rank = pair_rank(merges, symbol.id, work.symbols[symbol.next].id)
    if symbol.rank != <uint32_t> NO_RANK:
        heap_push(work, <uint64_t> symbol.rank << 32 | <uint32_t> place)


cdef inline bint reserve_symbols(MergeWork* work, size_t count) noexcept nogil:
    """Make room for a piece; False if there is no memory."""
    cdef void* symbols
    cdef void* heap
    if count <= work.room:
        return True
    symbols = realloc(work.symbols, count * sizeof(Symbol))
    if symbols != NULL:
        work.symbols = <Symbol*> symbols
    heap = realloc(work.heap, 2 * count * sizeof(uint64_t))
    if heap != NULL:
        work.heap = <uint64_t*> heap
    if symbols == NULL or heap == NULL:
        return False
    work.room = count
    return True


cdef inline void free_symbols(MergeWork* work) noexcept nogil:
    free(work.symbols)
    free(work.heap)
    work.symbols = NULL
    work.heap = NULL
    work.room = work.heap_count = 0


cdef inline int32_t spell(const Merges* merges, MergeWork* work, const uint8_t* piece, size_t length) noexcept nogil:
    """Fill the symbols with a piece's bytes; return how many stay."""
    cdef size_t index
    cdef int32_t count = 0
    cdef Symbol* symbol
    for index in range(length):
        if merges.byte_ids[piece[index]] == NO_ID:
            continue
        symbol = work.symbols + count
        symbol.id = merges.byte_ids[piece[index]]
        symbol.previous = count - 1
        symbol.next = count + 1
        symbol.width = merges.byte_widths[piece[index]]
        count += 1
    if count:
        work.symbols[count - 1].next = -1
    return count


cdef inline int32_t merge_long(const Merges* merges, MergeWork* work, const uint8_t* piece,
                               size_t length) noexcept nogil:
    """Merge a piece of less than 2**31 bytes in `work.symbols`; return how many of them to read, or -1: no memory.

    Symbols of width 0 are not part of the result.
    """
    cdef int32_t count, place, right
    cdef uint64_t top
    cdef Symbol* symbol
    if not reserve_symbols(work, length):
        return -1
    count = spell(merges, work, piece, length)
    work.heap_count = 0
    for place in range(count):
        note_pair(merges, work, place)
    # At most count - 1 pairs at first, and each merge takes one off and puts at most two on: the heap has the room.
    while work.heap_count:
        top = heap_pop(work)
        place = <int32_t> <uint32_t> top
        symbol = work.symbols + place
        if symbol.width == 0 or symbol.rank != top >> 32:
            continue
        right = symbol.next
        symbol.id = merges.merged[symbol.rank]
        symbol.width += work.symbols[right].width
        symbol.next = work.symbols[right].next
        work.symbols[right].width = 0
        if symbol.next >= 0:
            work.symbols[symbol.next].previous = place
        note_pair(merges, work, place)
        if symbol.previous >= 0:
            note_pair(merges, work, symbol.previous)
    return count


cdef inline uint64_t hash_word(const uint8_t* word, size_t length) noexcept nogil:
    """Mix the bytes of a word of any length, eight at a time (multiply and fold; the constants are arbitrary)."""
    cdef uint64_t mixed = length * 0x9E3779B97F4A7C15ULL, part
    cdef size_t index = 0, size
    while index < length:
        part = 0
        size = min(<size_t> 8, length - index)
        memcpy(&part, word + index, size)
        mixed = (mixed ^ part) * 0xBF58476D1CE4E5B9ULL
        mixed ^= mixed >> 29
        index += 8
    return mixed ^ (mixed >> 32)


cdef inline int32_t find_word(const Merges* merges, const uint8_t* word, size_t length) noexcept nogil:
    """The id of a piece that is one token, or NO_ID."""
    cdef uint64_t mixed = hash_word(word, length)
    cdef uint64_t place = mixed & merges.word_mask
    cdef const WordSlot* slot = merges.words + place
    while slot.length:
        if (
            slot.check == <uint32_t> (mixed >> 32) and slot.length == length
            and memcmp(merges.spelling + slot.start, word, length) == 0
        ):
            return slot.token_id
        place = (place + 1) & merges.word_mask
        slot = merges.words + place
    return NO_ID


cdef inline void merges_free(Merges* merges) noexcept:
    free(merges.pairs)
    free(merges.merged)
    free(merges.byte_ranks)
    free(merges.words)
    free(merges.spelling)
    memset(merges, 0, sizeof(Merges))


cdef inline object merges_init(Merges* merges, object pairs, object vocab, bint ignore_merges):
    """Fill zeroed tables from a BpeModel's merges and vocabulary; free them with merges_free, also after an error."""
    cdef MergeWork work
    memset(&work, 0, sizeof(work))
    set_pairs(merges, pairs)
    set_bytes(merges, vocab)
    try:
        set_words(merges, &work, vocab, ignore_merges)
    finally:
        free_symbols(&work)


cdef inline uint64_t table_places(size_t items) noexcept:
    """A power of two, at least twice `items`."""
    cdef uint64_t places = 64
    while places < 2 * items:
        places *= 2
    return places


cdef inline object set_pairs(Merges* merges, object pairs):
    """Fill the table of pairs from a mapping (left, right) -> (rank, merged)."""
    cdef uint64_t places = table_places(len(pairs)), place, index
    cdef uint32_t rank, highest = 0
    for rank, _ in pairs.values():
        highest = max(highest, rank)
    merges.pairs = <PairSlot*> calloc(places, sizeof(PairSlot))
    merges.merged = <int32_t*> calloc(<size_t> highest + 1, sizeof(int32_t))
    if merges.pairs == NULL or merges.merged == NULL:
        raise MemoryError
    merges.pair_mask = places - 1
    for index in range(places):
        merges.pairs[index].rank = <uint32_t> NO_RANK
    cdef int32_t left, right, merged
    for (left, right), (rank, merged) in pairs.items():
        place = pair_place(merges, ((<uint64_t> <uint32_t> left << 32) | <uint32_t> right) + 1)
        merges.pairs[place].key = ((<uint64_t> <uint32_t> left << 32) | <uint32_t> right) + 1
        merges.pairs[place].rank = rank
        merges.merged[rank] = merged


cdef inline object set_bytes(Merges* merges, object vocab):
    """Note each byte's own token, and the ranks of pairs of bytes."""
    from edgeonnx_ext.bpe import byte_characters
    cdef int left, right
    for left, char in enumerate(byte_characters()):
        merges.byte_ids[left] = vocab.get(char, NO_ID)
        merges.byte_widths[left] = len(char.encode())
    merges.byte_ranks = <uint32_t*> malloc(65536 * sizeof(uint32_t))
    if merges.byte_ranks == NULL:
        raise MemoryError
    for left in range(256):
        for right in range(256):
            merges.byte_ranks[left << 8 | right] = <uint32_t> NO_RANK
            if merges.byte_ids[left] != NO_ID and merges.byte_ids[right] != NO_ID:
                merges.byte_ranks[left << 8 | right] = pair_rank(merges, merges.byte_ids[left], merges.byte_ids[right])


cdef inline object set_words(Merges* merges, MergeWork* work, object vocab, bint all_tokens):
    """Fill the table of pieces that are one token: all tokens, or those that merging gets to by itself.

    A token that merges never reach, or reach only with fewer bytes (some vanish), is not what the piece becomes.
    """
    from edgeonnx_ext.bpe import spelled
    cdef list words = [(spelling, token_id) for spelling, token_id in spelled(vocab) if spelling]
    cdef uint64_t places = table_places(len(words)), mixed, place
    cdef size_t start = 0, total = 0, length
    cdef int32_t token_id
    cdef bytes spelling
    cdef const uint8_t* word
    merges.words = <WordSlot*> calloc(places, sizeof(WordSlot))
    for spelling, _ in words:
        total += len(spelling)
    merges.spelling = <uint8_t*> malloc(total + 1)
    if merges.words == NULL or merges.spelling == NULL or total > 0xFFFFFFFF:
        raise MemoryError
    merges.word_mask = places - 1
    for spelling, token_id in words:
        word = spelling
        length = len(spelling)
        if not all_tokens and not merges_to(merges, work, word, length, token_id):
            continue
        mixed = hash_word(word, length)
        place = mixed & merges.word_mask
        while merges.words[place].length:
            place = (place + 1) & merges.word_mask
        memcpy(merges.spelling + start, word, length)
        merges.words[place].check = <uint32_t> (mixed >> 32)
        merges.words[place].start = <uint32_t> start
        merges.words[place].length = <uint32_t> length
        merges.words[place].token_id = token_id
        start += length


cdef inline bint merges_to(const Merges* merges, MergeWork* work, const uint8_t* word, size_t length,
                           int32_t token_id) except -1:
    """Whether merging the bytes of a word gives this one token."""
    cdef int32_t count
    cdef int32_t[32] ids
    if length <= CACHE_KEY:
        return merge_short(merges, word, length, ids) == 1 and ids[0] == token_id
    count = merge_long(merges, work, word, length)
    if count < 0:
        raise MemoryError
    return count > 0 and work.symbols[0].next < 0 and work.symbols[0].id == token_id
