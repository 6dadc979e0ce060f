# A cache from short pieces to their ids, for byte-level BPE: the same idea as `_cache.pxd` in half the room, since most
# pieces have at most 16 bytes and three ids. Two of them share a line of 64 bytes, so that a piece costs one access to
# memory; a new piece takes the first half and pushes the older one to the second.
#
# It belongs to one call at a time, and what it holds never changes a result.

from libc.stdint cimport int32_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy


cdef enum:
    PIECE_BYTES = 16  # most bytes of a cached piece
    PIECE_IDS = 3  # most ids


# 32 bytes. Four ids may be copied at once: what stands behind the third is overwritten by the next piece.
cdef struct Piece:
    int32_t[3] ids
    uint8_t id_count
    uint8_t length  # 0 marks a free place
    uint8_t[2] unused
    uint64_t[2] key  # its bytes, padded with zeros


cdef struct PieceCache:
    void* block
    Piece* pieces  # in `block`, at a multiple of 64
    uint64_t pairs  # a power of two


cdef inline bint pieces_init(PieceCache* cache, uint64_t pairs) noexcept nogil:
    """Make an empty cache of `pairs` (a power of two) times two pieces, 64 bytes each pair; False if no memory."""
    cache.block = calloc(2 * pairs + 2, sizeof(Piece))
    cache.pairs = pairs
    if cache.block == NULL:
        return False
    cache.pieces = <Piece*> (<uint8_t*> cache.block + (64 - (<uintptr_t> cache.block & 63)))
    return True


cdef inline void pieces_free(PieceCache* cache) noexcept nogil:
    free(cache.block)
    cache.block = NULL
    cache.pieces = NULL


cdef inline Piece* piece_place(const PieceCache* cache, const uint64_t* key, size_t length) noexcept nogil:
    """The pair in which a piece may lie (multiply and fold; the constants are arbitrary)."""
    cdef uint64_t mixed = (key[0] ^ length) * 0x9E3779B97F4A7C15ULL
    mixed ^= (key[1] ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9ULL
    return cache.pieces + 2 * ((mixed ^ (mixed >> 32)) & (cache.pairs - 1))


cdef inline bint is_piece(const Piece* piece, const uint64_t* key, size_t length) noexcept nogil:
    return piece.length == length and ((piece.key[0] ^ key[0]) | (piece.key[1] ^ key[1])) == 0


cdef inline void piece_store(Piece* pair, const uint64_t* key, size_t length, const int32_t* ids,
                             size_t count) noexcept nogil:
    """Keep a piece of 1 to PIECE_BYTES bytes and its ids, unless they are more than PIECE_IDS."""
    if count > PIECE_IDS:
        return
    pair[1] = pair[0]
    pair.key[0] = key[0]
    pair.key[1] = key[1]
    pair.length = <uint8_t> length
    pair.id_count = <uint8_t> count
    if count:
        memcpy(pair.ids, ids, count * sizeof(int32_t))
