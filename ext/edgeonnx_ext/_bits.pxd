# Ways of the compiler that C has no word for, each with plain C beside it; and the letters of a text as bits.

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset


cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define EDGEONNX_KEEP_BYTES(word, count) ((word) & (~0ULL << (64 - 8 * (count))))
    #define EDGEONNX_LITTLE(word) __builtin_bswap64(word)
    #define EDGEONNX_LOW_BYTE_FIRST 0
    #else
    #define EDGEONNX_KEEP_BYTES(word, count) ((word) & (~0ULL >> (64 - 8 * (count))))
    #define EDGEONNX_LITTLE(word) (word)
    #define EDGEONNX_LOW_BYTE_FIRST 1
    #endif
    #if defined(__GNUC__) || defined(__clang__)
    #define EDGEONNX_FETCH_AHEAD(address) __builtin_prefetch(address)
    #define EDGEONNX_LOWEST_BIT(word) ((size_t) __builtin_ctzll(word))
    #else
    #define EDGEONNX_FETCH_AHEAD(address) ((void) (address))
    static size_t EDGEONNX_LOWEST_BIT(unsigned long long word) {
        size_t bit = 0;
        for (; !(word & 1); word >>= 1)
            ++bit;
        return bit;
    }
    #endif
    """
    # The first `count` (1 to 8) bytes of 8, as they lie in memory; the others become 0.
    uint64_t keep_bytes "EDGEONNX_KEEP_BYTES"(uint64_t word, size_t count) noexcept nogil
    # 8 bytes as a number whose lowest byte is the first of them.
    uint64_t little "EDGEONNX_LITTLE"(uint64_t word) noexcept nogil
    # Whether the first byte of a number in memory is its lowest.
    bint LOW_BYTE_FIRST "EDGEONNX_LOW_BYTE_FIRST"
    # Let the processor load a cache line that is read soon.
    void fetch_ahead "EDGEONNX_FETCH_AHEAD"(const void* address) noexcept nogil
    # The number of the lowest bit that is set; there must be one.
    size_t lowest_bit "EDGEONNX_LOWEST_BIT"(uint64_t word) noexcept nogil


cdef inline uint64_t letter_bits(const uint8_t* chars, size_t count) noexcept nogil:
    """Tell which of up to 64 characters are ASCII letters or digits: the first in the lowest bit.

    Without a branch, so that the compiler can do many at once and the processor has nothing to guess. Eight bytes of 0
    or 1 become eight bits by one multiplication, which moves each to its place in the highest byte.
    """
    cdef uint8_t[64] block
    cdef uint8_t[64] flags
    cdef size_t index
    cdef uint8_t letter, digit
    cdef uint64_t eight, bits = 0
    if count < 64:
        memset(block, 0, 64)
        memcpy(block, chars, count)
    else:
        memcpy(block, chars, 64)
    for index in range(<size_t> 64):
        letter = <uint8_t> ((block[index] | 32) - 97)
        digit = <uint8_t> (block[index] - 48)
        flags[index] = <uint8_t> ((letter < 26) | (digit < 10))
    for index in range(<size_t> 8):
        memcpy(&eight, flags + 8 * index, 8)
        bits |= ((little(eight) * 0x0102040810204080ULL) >> 56) << (8 * index)
    return bits


cdef inline size_t letter_run(uint64_t bits) noexcept nogil:
    """The number of ones from the lowest bit on."""
    return 64 if bits == <uint64_t> -1 else lowest_bit(~bits)
