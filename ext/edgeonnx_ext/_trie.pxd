# A trie over code points: all its edges in one open-addressing hash table, one cache line for most steps.
#
# Node 0 is the root. No edge leads back to it, so trie_step returns 0 for "no such edge".

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc


cdef enum:
    NO_TOKEN = -1


cdef struct Edge:
    uint64_t key  # node and code point, plus 1; 0 marks a free place
    uint32_t child


cdef struct Trie:
    Edge* edges
    uint64_t places  # a power of two, at least twice the number of edges
    uint64_t edge_count
    int32_t* token_at  # for each node: the token that ends there, or NO_TOKEN
    uint32_t node_count
    uint32_t node_room


cdef inline uint64_t trie_key(uint32_t node, uint32_t char) noexcept nogil:
    return ((<uint64_t> node << 21) | char) + 1


cdef inline uint64_t trie_place(const Trie* trie, uint64_t key) noexcept nogil:
    """The place of `key`, or the free place where it belongs (Fibonacci hashing, linear probing)."""
    cdef uint64_t place = (key * 0x9E3779B97F4A7C15ULL) >> 32
    place &= trie.places - 1
    while trie.edges[place].key != key and trie.edges[place].key != 0:
        place = (place + 1) & (trie.places - 1)
    return place


cdef inline uint32_t trie_step(const Trie* trie, uint32_t node, uint32_t char) noexcept nogil:
    """The child of `node` along `char`, or 0."""
    cdef uint64_t place = trie_place(trie, trie_key(node, char))
    return trie.edges[place].child  # a free place holds child 0


cdef inline bint trie_new_node(Trie* trie) noexcept nogil:
    """Append a node; False if there is no memory."""
    cdef int32_t* grown
    cdef uint32_t room = trie.node_room
    if trie.node_count == room:
        room = 2 * room if room else 1024
        grown = <int32_t*> realloc(trie.token_at, room * sizeof(int32_t))
        if grown == NULL:
            return False
        trie.token_at = grown
        trie.node_room = room
    trie.token_at[trie.node_count] = NO_TOKEN
    trie.node_count += 1
    return True


cdef inline bint trie_init(Trie* trie) noexcept nogil:
    """Make an empty trie (its root alone); False if there is no memory."""
    trie.places = 4096
    trie.edge_count = 0
    trie.token_at = NULL
    trie.node_count = trie.node_room = 0
    trie.edges = <Edge*> calloc(trie.places, sizeof(Edge))
    return trie.edges != NULL and trie_new_node(trie)


cdef inline void trie_free(Trie* trie) noexcept nogil:
    free(trie.edges)
    free(trie.token_at)
    trie.edges = NULL
    trie.token_at = NULL


cdef inline bint trie_grow(Trie* trie) noexcept nogil:
    """Double the table; False if there is no memory."""
    cdef Edge* old = trie.edges
    cdef uint64_t old_places = trie.places, index
    trie.edges = <Edge*> calloc(2 * old_places, sizeof(Edge))
    if trie.edges == NULL:
        trie.edges = old
        return False
    trie.places = 2 * old_places
    for index in range(old_places):
        if old[index].key != 0:
            trie.edges[trie_place(trie, old[index].key)] = old[index]
    free(old)
    return True


cdef inline uint32_t trie_extend(Trie* trie, uint32_t node, uint32_t char) noexcept nogil:
    """The child of `node` along `char`, made if it is new; 0 if there is no memory."""
    cdef uint64_t key = trie_key(node, char)
    cdef uint64_t place = trie_place(trie, key)
    if trie.edges[place].key == key:
        return trie.edges[place].child
    if 2 * (trie.edge_count + 1) > trie.places:
        if not trie_grow(trie):
            return 0
        place = trie_place(trie, key)
    if not trie_new_node(trie):
        return 0
    trie.edges[place].key = key
    trie.edges[place].child = trie.node_count - 1
    trie.edge_count += 1
    return trie.node_count - 1
