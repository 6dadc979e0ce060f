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
#
# Spans need more: Hugging Face's NormalizedString gives the characters of a sorted run the places of the run's original
# characters in order, whichever of them came from where (tokenizer/normalizer.rs, transform_range; a further character
# of a decomposition shares the place of the one before). So with spans every mark is held back, removed ones included.

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from edgeonnx_ext._added cimport AddedTokens
from edgeonnx_ext._arrays cimport Chars, Ids, push_char, push_id, push_span, reserve_chars
from edgeonnx_ext._cache cimport WordCache
from edgeonnx_ext._trie cimport NO_TOKEN, Edge, Trie, trie_edge
from edgeonnx_ext._words cimport WordTable


cdef enum:
    NOWHERE = 0xFFFFFFFF  # a trie node that has no edges
    ADDED = 0xFFFFFFFF  # in place of a position: a further character of a decomposition


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
    Trie vocab
    uint32_t continuing  # node from which tokens continue a word
    AddedTokens added
    bint trims_spans  # whitespace that added tokens take along is no part of their spans
    int32_t unk_id
    size_t max_word_chars
    WordTable words
    uint64_t lower_bits  # see lower_ascii
    uint8_t[256] part_class  # of a Latin-1 character: whether it may stand within a word; see _parts.pxd
    uint8_t[256] is_space
    int32_t[256] alone_id  # of a Latin-1 character: its token if it is a word of its own, or NO_TOKEN


# Belongs to one call at a time.
cdef struct Work:
    Ids* ids  # the caller's
    Ids* spans  # the caller's, or NULL
    Chars word
    Chars positions  # with spans: where in the text each character of the word comes from
    size_t word_length  # the word holds no more than max_word_chars, this counts on
    uint32_t word_start  # position of the word's first character
    uint32_t word_last  # and of its last one
    uint32_t position  # of the character that is on its way
    Chars marks  # nonstarters that wait for the next starter: pairs of a character and its position, or ADDED
    Chars sorted_marks
    WordCache cache
    bint out_of_memory


cdef inline void free_arrays(Work* work) noexcept nogil:
    free(work.word.items)
    free(work.positions.items)
    free(work.marks.items)
    free(work.sorted_marks.items)


# --- words to ids -----------------------------------------------------------------------------------------------------

cdef inline void emit(Work* work, int32_t token_id, uint32_t start, uint32_t last) noexcept nogil:
    """Append a token and, if spans are wanted, the positions of its first and behind its last character."""
    if not push_id(work.ids, token_id):
        work.out_of_memory = True
    elif work.spans != NULL and not push_span(work.spans, <int32_t> start, <int32_t> (last + 1)):
        work.out_of_memory = True


cdef inline void emit_part(Work* work, int32_t token_id, size_t start, size_t end) noexcept nogil:
    """Append the token of the characters [start, end) of the word."""
    if work.spans == NULL:
        emit(work, token_id, 0, 0)
    else:
        emit(work, token_id, work.positions.items[start], work.positions.items[end - 1])


cdef inline void match_word(const Rules* rules, Work* work) noexcept nogil:
    """Append the word's tokens: from its start always the longest that fits, or the unknown token for all of it."""
    cdef size_t before = work.ids.count, start = 0, position, end
    cdef size_t spans_before = work.spans.count if work.spans != NULL else 0
    cdef uint32_t node = 0
    cdef const Edge* edge
    cdef int32_t best
    while start < work.word.count:
        best = NO_TOKEN
        end = position = start
        while position < work.word.count:
            edge = trie_edge(&rules.vocab, node, work.word.items[position])
            node = edge.child
            if node == 0:
                break
            position += 1
            if edge.token_id != NO_TOKEN:
                best = edge.token_id
                end = position
        if best == NO_TOKEN:
            work.ids.count = before
            if work.spans != NULL:
                work.spans.count = spans_before
            emit(work, rules.unk_id, work.word_start, work.word_last)
            return
        emit_part(work, best, start, end)
        start = end
        node = rules.continuing


cdef inline void end_word(const Rules* rules, Work* work) noexcept nogil:
    if work.word_length > rules.max_word_chars:
        emit(work, rules.unk_id, work.word_start, work.word_last)
    elif work.word_length:
        match_word(rules, work)
    work.word_length = 0
    work.word.count = 0
    work.positions.count = 0


cdef inline void add_letter(const Rules* rules, Work* work, uint32_t char) noexcept nogil:
    if work.word_length == 0:
        work.word_start = work.position
    work.word_last = work.position
    if work.word_length < rules.max_word_chars:
        if not push_char(&work.word, char):
            work.out_of_memory = True
        elif work.spans != NULL and not push_char(&work.positions, work.position):
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


cdef inline bint sort_marks(const Rules* rules, Work* work) noexcept nogil:
    """Sort the marks that waited by class, stably: a counting sort, as a text may be all marks. False: no memory."""
    cdef size_t[256] starts  # a combining class is a byte
    cdef size_t index, place, before = 0, here, count = work.marks.count
    cdef uint8_t combining
    memset(starts, 0, sizeof(starts))
    work.sorted_marks.count = 0
    if not reserve_chars(&work.sorted_marks, count):
        return False
    for index in range(0, count, 2):
        starts[record_of(rules, work.marks.items[index]).combining] += 2
    for index in range(<size_t> 256):
        here = starts[index]
        starts[index] = before
        before += here
    for index in range(0, count, 2):
        combining = record_of(rules, work.marks.items[index]).combining
        place = starts[combining]
        work.sorted_marks.items[place] = work.marks.items[index]
        work.sorted_marks.items[place + 1] = work.marks.items[index + 1]
        starts[combining] += 2
    return True


cdef inline void flush_marks(const Rules* rules, Work* work) noexcept nogil:
    """Emit the marks that waited, in canonical order, each from the next position of the run."""
    cdef size_t index, source = 0
    cdef uint32_t char
    if not sort_marks(rules, work):
        work.out_of_memory = True
        work.marks.count = 0
        return
    for index in range(0, work.marks.count, 2):
        char = work.sorted_marks.items[index]
        if work.sorted_marks.items[index + 1] != ADDED:
            while work.marks.items[source + 1] == ADDED:
                source += 2
            work.position = work.marks.items[source + 1]
            source += 2
        if not record_of(rules, char).flags & NONSPACING:
            add_ordered(rules, work, char)
    work.marks.count = 0


cdef inline void flush(const Rules* rules, Work* work) noexcept nogil:
    if work.marks.count:
        flush_marks(rules, work)


cdef inline void add_decomposed(const Rules* rules, Work* work, uint32_t char, uint32_t position) noexcept nogil:
    """Order one code point of the decomposition, or remove it; `position` is ADDED for all but the first."""
    cdef const Record* record = record_of(rules, char)
    cdef bint removed = (record.flags & NONSPACING) != 0
    if record.combining:
        if removed and work.spans == NULL:
            return
        if not (push_char(&work.marks, char) and push_char(&work.marks, position)):
            work.out_of_memory = True
            work.marks.count = 0
        return
    flush(rules, work)
    if position != ADDED:
        work.position = position
    if not removed:
        add_ordered(rules, work, char)


cdef inline void add_hangul(const Rules* rules, Work* work, uint32_t char, uint32_t position) noexcept nogil:
    """Decompose a Hangul syllable into jamo (The Unicode Standard, section 3.12); jamo are starters."""
    cdef uint32_t index = char - 0xAC00
    add_decomposed(rules, work, 0x1100 + index // 588, position)
    add_decomposed(rules, work, 0x1161 + (index % 588) // 28, <uint32_t> ADDED)
    if index % 28:
        add_decomposed(rules, work, 0x11A7 + index % 28, <uint32_t> ADDED)


cdef inline void add_intricate(const Rules* rules, Work* work, uint32_t char, uint32_t position) noexcept nogil:
    """Take every step for a code point that clean_text neither removes nor changes."""
    cdef const Record* record = record_of(rules, char)
    cdef bint apart = rules.handle_chinese_chars and (record.flags & CJK) != 0
    cdef size_t index
    if apart:
        flush(rules, work)
        end_word(rules, work)
    if not rules.strip_accents:
        work.position = position
        add_ordered(rules, work, char)
    elif record.flags & HANGUL:
        add_hangul(rules, work, char, position)
    elif record.nfd_length == 0:
        add_decomposed(rules, work, char, position)
    else:
        for index in range(record.nfd_length):
            add_decomposed(
                rules, work, rules.pool[record.nfd_start + index], <uint32_t> ADDED if index else position
            )
    if apart:
        flush(rules, work)
        end_word(rules, work)


cdef inline bint moves_spans(const Rules* rules, uint32_t char) noexcept nogil:
    """Whether the positions of a run of marks depend on `char`, though its ids do not."""
    cdef const Record* record = record_of(rules, char)
    if not rules.strip_accents or (rules.clean_text and record.flags & (CLEAN_DROP | CLEAN_SPACE)):
        return False
    return record.nfd_length != 0 or record.combining != 0


cdef inline void add_char(const Rules* rules, Work* work, uint32_t char, uint32_t position) noexcept nogil:
    cdef const Action* action = &rules.actions[record_index(rules, char)]
    cdef uint32_t becomes = action.char if action.char else char
    if action.kind == INTRICATE or (work.spans != NULL and moves_spans(rules, char)):
        add_intricate(rules, work, char, position)
        return
    if action.kind == SKIP:
        return
    flush(rules, work)
    work.position = position
    if action.kind == LETTER:
        add_letter(rules, work, becomes)
    elif action.kind == SPACE:
        end_word(rules, work)
    elif action.kind == ALONE:
        add_alone(rules, work, becomes)


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
