# A cache from short words to their ids: one cache line a word, no pointer to follow, nothing to free in between.
#
# It belongs to one call at a time (a tokenizer lends it with the rest of its work memory), so it needs no lock. What it
# holds never changes a result: a word that is not there, is too long, or has too many ids is worked out anew.
#
# Two ways: a word may lie in either line of a pair; a new word takes the first and pushes the older one to the second.
#
# A word of another alphabet (UTF-16 beside bytes) may be kept in the same cache: add CACHE_OTHER to its length.

from libc.stdint cimport int32_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset


cdef enum:
    CACHE_KEY = 32  # most bytes of a word
    CACHE_IDS = 7  # most ids of a word
    CACHE_OTHER = 64


cdef struct CacheLine:
    uint64_t[4] key  # the word's bytes, padded with zeros
    uint8_t length  # bytes of the word, and CACHE_OTHER or not; 0 marks a free line
    uint8_t id_count
    uint8_t[2] unused
    int32_t[7] ids


cdef struct WordCache:
    void* block
    CacheLine* lines  # in `block`, at a multiple of 64: each within one line of the CPU's cache
    uint64_t pairs  # a power of two


cdef inline bint cache_init(WordCache* cache, uint64_t pairs) noexcept nogil:
    """Make an empty cache of `pairs` (a power of two) times two words, 128 bytes each pair; False if no memory."""
    cache.pairs = pairs
    cache.block = calloc(2 * pairs + 1, sizeof(CacheLine))
    if cache.block == NULL:
        return False
    cache.lines = <CacheLine*> (<uint8_t*> cache.block + (64 - (<uintptr_t> cache.block & 63)))
    return True


cdef inline void cache_free(WordCache* cache) noexcept nogil:
    free(cache.block)
    cache.block = NULL
    cache.lines = NULL


cdef inline void cache_key(uint64_t* key, const uint8_t* word, size_t length) noexcept nogil:
    """Copy a word of at most CACHE_KEY bytes into a key."""
    key[0] = key[1] = key[2] = key[3] = 0
    memcpy(key, word, length)


cdef inline uint64_t cache_hash(const uint64_t* key, size_t length) noexcept nogil:
    """Mix a key (multiply and fold; the constants are odd and arbitrary)."""
    cdef uint64_t mixed = (key[0] ^ length) * 0x9E3779B97F4A7C15ULL
    mixed ^= (key[1] ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9ULL
    if length > 16:
        mixed ^= (key[2] ^ (mixed >> 31)) * 0x94D049BB133111EBULL
        mixed ^= (key[3] ^ (mixed >> 30)) * 0xD6E8FEB86659FD93ULL
    return mixed ^ (mixed >> 32)


cdef inline bint same_key(const CacheLine* line, const uint64_t* key, size_t length) noexcept nogil:
    return (
        line.length == length
        and ((line.key[0] ^ key[0]) | (line.key[1] ^ key[1]) | (line.key[2] ^ key[2]) | (line.key[3] ^ key[3])) == 0
    )


cdef inline const CacheLine* cache_find(const WordCache* cache, const uint64_t* key, size_t length) noexcept nogil:
    """The line of a word of 1 to CACHE_KEY bytes, or NULL."""
    cdef CacheLine* pair = cache.lines + 2 * (cache_hash(key, length) & (cache.pairs - 1))
    if same_key(pair, key, length):
        return pair
    if same_key(pair + 1, key, length):
        return pair + 1
    return NULL


cdef inline void cache_store(WordCache* cache, const uint64_t* key, size_t length, const int32_t* ids,
                             size_t count) noexcept nogil:
    """Keep a word of 1 to CACHE_KEY bytes and its ids, unless they are more than CACHE_IDS."""
    cdef CacheLine* pair
    if count > CACHE_IDS:
        return
    pair = cache.lines + 2 * (cache_hash(key, length) & (cache.pairs - 1))
    pair[1] = pair[0]
    memcpy(pair.key, key, CACHE_KEY)
    pair.length = <uint8_t> length
    pair.id_count = <uint8_t> count
    memset(pair.ids, 0, sizeof(pair.ids))
    if count:
        memcpy(pair.ids, ids, count * sizeof(int32_t))
