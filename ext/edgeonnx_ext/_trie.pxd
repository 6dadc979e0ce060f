# A trie over code points: all its edges in one open-addressing hash table, one cache line for most steps.
#
# Node 0 is the root. No edge leads back to it, so the edge of a step that does not exist has child 0.

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free


cdef enum:
    NO_TOKEN = -1


cdef struct Edge:
    uint64_t key  # node and code point, plus 1; 0 marks a free place
    uint32_t child
    int32_t token_id  # of the token that ends at `child`, or NO_TOKEN


cdef struct Trie:
    Edge* edges
    uint64_t places  # a power of two; a quarter of them, or more, are free
    uint64_t edge_count  # each edge leads to a node of its own


cdef inline uint64_t trie_key(uint32_t node, uint32_t char) noexcept nogil:
    return ((<uint64_t> node << 21) | char) + 1


cdef inline uint64_t trie_place(const Trie* trie, uint64_t key) noexcept nogil:
    """The place of `key`, or the free place where it belongs (Fibonacci hashing, linear probing)."""
    cdef uint64_t place = (key * 0x9E3779B97F4A7C15ULL) >> 32
    place &= trie.places - 1
    while trie.edges[place].key != key and trie.edges[place].key != 0:
        place = (place + 1) & (trie.places - 1)
    return place


cdef inline const Edge* trie_edge(const Trie* trie, uint32_t node, uint32_t char) noexcept nogil:
    """The edge from `node` along `char`; a free place, with child 0, if there is none."""
    return &trie.edges[trie_place(trie, trie_key(node, char))]


cdef inline bint trie_init(Trie* trie) noexcept nogil:
    """Make an empty trie (its root alone); False if there is no memory."""
    trie.places = 1024
    trie.edge_count = 0
    trie.edges = <Edge*> calloc(trie.places, sizeof(Edge))
    return trie.edges != NULL


cdef inline void trie_free(Trie* trie) noexcept nogil:
    free(trie.edges)
    trie.edges = NULL


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


cdef inline Edge* trie_extend(Trie* trie, uint32_t node, uint32_t char) noexcept nogil:
    """The edge from `node` along `char`, made if it is new; NULL if there is no memory. The next one may move it."""
    cdef uint64_t key = trie_key(node, char)
    cdef uint64_t place = trie_place(trie, key)
    if trie.edges[place].key == key:
        return &trie.edges[place]
    if 4 * (trie.edge_count + 1) > 3 * trie.places:
        if not trie_grow(trie):
            return NULL
        place = trie_place(trie, key)
    trie.edge_count += 1
    trie.edges[place].key = key
    trie.edges[place].child = <uint32_t> trie.edge_count
    trie.edges[place].token_id = NO_TOKEN
    return &trie.edges[place]


cdef inline bint trie_add(Trie* trie, str token, int32_t token_id):
    """Let `token` end at its node (an empty one nowhere: no text holds it); False if there is no memory."""
    cdef uint32_t node = 0
    cdef Edge* edge = NULL
    for char in token:
        edge = trie_extend(trie, node, ord(char))
        if edge == NULL:
            return False
        node = edge.child
    if edge != NULL:
        edge.token_id = token_id
    return True
