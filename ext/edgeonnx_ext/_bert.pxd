# BERT's normalizer, pre-tokenizer and WordPiece as one stream: code points in, ids out.
#
# The chain of Hugging Face's BertNormalizer, BertPreTokenizer and WordPiece: each code point is looked up once, most
# are a LETTER, a SPACE or ALONE, and go straight into the word; a finished word is matched in the vocabulary's trie.
#
# The one thing that looks beyond its own code point is canonical ordering (UAX #15): NFD sorts each run of nonstarters
# by combining class. strip_accents then removes most of them, but not those that are not nonspacing marks (U+302E,
# U+1D165) or that the library's tables do not know as such. A stable sort restricted to the marks that stay equals the
# restriction of the whole sort, so it is enough to hold those back until the next starter, removed starters included
# (BOUNDARY), and to sort them then.

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from edgeonnx_ext._trie cimport NO_TOKEN, Trie, trie_step


cdef enum:
    NOWHERE = 0xFFFFFFFF  # a trie node that has no edges


# Flags of a character record; edgeonnx_ext/_unicode.py documents them.
cdef enum:
    CLEAN_DROP = 1
    CLEAN_SPACE = 2
    CJK = 4
    NONSPACING = 8
    SPLIT = 16
    PUNCTUATION = 32
    HANGUL = 64


# What a character does, for one tokenizer's flags; worked out once for each record of the table.
cdef enum:
    SKIP  # nothing: removed before it could matter
    BOUNDARY  # removed, but a starter: marks do not move across it
    SPACE  # ends a word
    ALONE  # is a word of its own
    LETTER  # belongs to a word
    INTRICATE  # none of these: take every step of the normalizer


cdef struct Record:
    uint8_t flags
    uint8_t combining
    uint8_t nfd_length
    uint8_t lower_length
    uint16_t nfd_start
    uint16_t lower_start


cdef struct Action:
    uint32_t kind
    uint32_t char  # what it becomes; 0: itself


cdef struct Ids:
    int32_t* items
    size_t count
    size_t room


cdef struct Chars:
    uint32_t* items
    size_t count
    size_t room


# Read-only while texts are tokenized: several threads may share it.
cdef struct Rules:
    const uint16_t* stage1
    const uint16_t* stage2
    const Record* records
    const uint32_t* pool
    const Action* actions
    int block_shift
    bint clean_text
    bint handle_chinese_chars
    bint strip_accents
    bint lowercase
    Trie* vocab
    uint32_t continuing  # node from which tokens continue a word
    Trie* added
    int32_t unk_id
    size_t max_word_chars


# Belongs to one call.
cdef struct Work:
    Ids ids
    Chars word
    size_t word_length  # the word holds no more than max_word_chars, this counts on
    Chars marks  # kept nonstarters that wait for the next starter
    Chars sorted_marks
    bint out_of_memory


# --- growing arrays ---------------------------------------------------------------------------------------------------

cdef inline bint push_id(Ids* ids, int32_t item) noexcept nogil:
    cdef int32_t* grown
    cdef size_t room
    if ids.count == ids.room:
        room = 2 * ids.room if ids.room else 256
        grown = <int32_t*> realloc(ids.items, room * sizeof(int32_t))
        if grown == NULL:
            return False
        ids.items = grown
        ids.room = room
    ids.items[ids.count] = item
    ids.count += 1
    return True


cdef inline bint push_char(Chars* chars, uint32_t item) noexcept nogil:
    cdef uint32_t* grown
    cdef size_t room
    if chars.count == chars.room:
        room = 2 * chars.room if chars.room else 128
        grown = <uint32_t*> realloc(chars.items, room * sizeof(uint32_t))
        if grown == NULL:
            return False
        chars.items = grown
        chars.room = room
    chars.items[chars.count] = item
    chars.count += 1
    return True


cdef inline void free_work(Work* work) noexcept nogil:
    free(work.ids.items)
    free(work.word.items)
    free(work.marks.items)
    free(work.sorted_marks.items)


# --- words to ids -----------------------------------------------------------------------------------------------------

cdef inline void emit_id(Work* work, int32_t token_id) noexcept nogil:
    if not push_id(&work.ids, token_id):
        work.out_of_memory = True


cdef inline void match_word(const Rules* rules, Work* work) noexcept nogil:
    """Append the word's tokens: from its start always the longest that fits, or the unknown token for all of it."""
    cdef size_t before = work.ids.count, start = 0, position, end
    cdef uint32_t node = 0
    cdef int32_t best
    while start < work.word.count:
        best = NO_TOKEN
        end = position = start
        while position < work.word.count:
            node = trie_step(rules.vocab, node, work.word.items[position])
            if node == 0:
                break
            position += 1
            if rules.vocab.token_at[node] != NO_TOKEN:
                best = rules.vocab.token_at[node]
                end = position
        if best == NO_TOKEN:
            work.ids.count = before
            emit_id(work, rules.unk_id)
            return
        emit_id(work, best)
        start = end
        node = rules.continuing


cdef inline void end_word(const Rules* rules, Work* work) noexcept nogil:
    if work.word_length > rules.max_word_chars:
        emit_id(work, rules.unk_id)
    elif work.word_length:
        match_word(rules, work)
    work.word_length = 0
    work.word.count = 0


cdef inline void add_letter(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    if work.word_length < rules.max_word_chars and not push_char(&work.word, char):
        work.out_of_memory = True
    work.word_length += 1


cdef inline void add_alone(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    end_word(rules, work)
    add_letter(rules, work, char)
    end_word(rules, work)


# --- characters to words ----------------------------------------------------------------------------------------------

cdef inline size_t record_index(const Rules* rules, uint32_t char) noexcept nogil:
    cdef size_t block = rules.stage1[char >> rules.block_shift]
    return rules.stage2[(block << rules.block_shift) + (char & ((1U << rules.block_shift) - 1))]


cdef inline const Record* record_of(const Rules* rules, uint32_t char) noexcept nogil:
    return &rules.records[record_index(rules, char)]


cdef inline void add_final(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    """Pre-tokenize one normalized code point."""
    cdef uint8_t flags = record_of(rules, char).flags
    if flags & SPLIT:
        end_word(rules, work)
    elif flags & PUNCTUATION:
        add_alone(rules, work, char)
    else:
        add_letter(rules, work, char)


cdef inline void add_ordered(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    """Lower-case one code point that stands in its final place."""
    cdef const Record* record = record_of(rules, char)
    cdef size_t index
    if not rules.lowercase or record.lower_length == 0:
        add_final(rules, work, char)
        return
    for index in range(record.lower_length):
        add_final(rules, work, rules.pool[record.lower_start + index])


cdef inline void flush_marks(const Rules* rules, Work* work) noexcept nogil:
    """Emit the marks that waited, sorted by class, stably: a counting sort, as a text may be all marks."""
    cdef size_t[256] starts  # a combining class is a byte
    cdef size_t index, count = work.marks.count, before = 0, here
    cdef uint8_t combining
    memset(starts, 0, sizeof(starts))
    work.marks.count = work.sorted_marks.count = 0
    for index in range(count):
        starts[record_of(rules, work.marks.items[index]).combining] += 1
        if not push_char(&work.sorted_marks, 0):
            work.out_of_memory = True
            return
    for index in range(<size_t> 256):
        here = starts[index]
        starts[index] = before
        before += here
    for index in range(count):
        combining = record_of(rules, work.marks.items[index]).combining
        work.sorted_marks.items[starts[combining]] = work.marks.items[index]
        starts[combining] += 1
    for index in range(count):
        add_ordered(rules, work, work.sorted_marks.items[index])


cdef inline void flush(const Rules* rules, Work* work) noexcept nogil:
    if work.marks.count:
        flush_marks(rules, work)


cdef inline void add_decomposed(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    """Order one code point of the decomposition, or remove it."""
    cdef const Record* record = record_of(rules, char)
    cdef bint removed = (record.flags & NONSPACING) != 0
    if record.combining:
        if not removed and not push_char(&work.marks, char):
            work.out_of_memory = True
        return
    flush(rules, work)
    if not removed:
        add_ordered(rules, work, char)


cdef inline void add_hangul(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    """Decompose a Hangul syllable into jamo (The Unicode Standard, section 3.12); jamo are starters."""
    cdef uint32_t index = char - 0xAC00
    add_decomposed(rules, work, 0x1100 + index // 588)
    add_decomposed(rules, work, 0x1161 + (index % 588) // 28)
    if index % 28:
        add_decomposed(rules, work, 0x11A7 + index % 28)


cdef inline void add_intricate(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    """Take every step for a code point that clean_text neither removes nor changes."""
    cdef const Record* record = record_of(rules, char)
    cdef bint apart = rules.handle_chinese_chars and (record.flags & CJK) != 0
    cdef size_t index
    if apart:
        flush(rules, work)
        end_word(rules, work)
    if not rules.strip_accents:
        add_ordered(rules, work, char)
    elif record.flags & HANGUL:
        add_hangul(rules, work, char)
    elif record.nfd_length == 0:
        add_decomposed(rules, work, char)
    else:
        for index in range(record.nfd_length):
            add_decomposed(rules, work, rules.pool[record.nfd_start + index])
    if apart:
        flush(rules, work)
        end_word(rules, work)


cdef inline void add_char(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    cdef const Action* action = &rules.actions[record_index(rules, char)]
    cdef uint32_t becomes = action.char if action.char else char
    if action.kind == LETTER:
        flush(rules, work)
        add_letter(rules, work, becomes)
    elif action.kind == SPACE:
        flush(rules, work)
        end_word(rules, work)
    elif action.kind == ALONE:
        flush(rules, work)
        add_alone(rules, work, becomes)
    elif action.kind == BOUNDARY:
        flush(rules, work)
    elif action.kind == INTRICATE:
        add_intricate(rules, work, char)


cdef inline Action simple_action(const Rules* rules, uint32_t char, bint itself) noexcept nogil:
    """The action of a code point whose decomposition is the one starter `char` (which `itself` may say it is)."""
    cdef const Record* record = record_of(rules, char)
    cdef Action action
    action.kind = LETTER
    action.char = 0 if itself else char
    if rules.lowercase and record.lower_length > 1:
        action.kind = INTRICATE
        return action
    if rules.lowercase and record.lower_length == 1:
        action.char = rules.pool[record.lower_start]
        record = record_of(rules, action.char)
    if record.flags & SPLIT:
        action.kind = SPACE
    elif record.flags & PUNCTUATION:
        action.kind = ALONE
    return action


cdef inline Action own_action(const Rules* rules, uint32_t char) noexcept nogil:
    """What `char` does under these rules: the steps of add_intricate, worked out ahead where they have one result."""
    cdef const Record* record = record_of(rules, char)
    cdef Action action
    cdef uint32_t part, kept = 0
    cdef size_t index, kept_count = 0
    action.kind = INTRICATE
    action.char = 0
    if rules.clean_text and record.flags & (CLEAN_DROP | CLEAN_SPACE):
        action.kind = SKIP if record.flags & CLEAN_DROP else SPACE
        return action
    if not rules.strip_accents or (record.nfd_length == 0 and not record.flags & (HANGUL | NONSPACING)):
        if not rules.strip_accents or record.combining == 0:
            action = simple_action(rules, char, True)
    elif record.nfd_length == 0 and record.flags & NONSPACING:
        action.kind = SKIP if record.combining else BOUNDARY
        return action
    elif not record.flags & HANGUL:
        for index in range(record.nfd_length):
            part = rules.pool[record.nfd_start + index]
            if not record_of(rules, part).flags & NONSPACING:
                kept = part
                kept_count += 1
        # One kept starter: what is removed around it can hold back no mark.
        if kept_count == 1 and record_of(rules, kept).combining == 0:
            action = simple_action(rules, kept, False)
    if action.kind == LETTER and rules.handle_chinese_chars and record.flags & CJK:
        action.kind = ALONE
    return action
