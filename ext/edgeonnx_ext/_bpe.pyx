"""Compiled byte-level BPE: a text to ids. `_starts.pxd` and `_scan.pxd` cut it into pieces, `_merge.pxd` merges them.

See `reference/bpe.py` for arguments and errors. Most pieces are one lookup in a cache (`_pieces.pxd`). With spans every
piece is merged anew (`_spans.pxd`), as only the merge knows which bytes a token covers.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

from edgeonnx_ext._added cimport Match, added_free, added_init, next_added
from edgeonnx_ext._arrays cimport Ids, push_id, reserve_ids
from edgeonnx_ext._bits cimport LOW_BYTE_FIRST, fetch_ahead, lowest_bit
from edgeonnx_ext._cache cimport CACHE_KEY, CacheLine, cache_find, cache_store
from edgeonnx_ext._merge cimport (
    NO_ID, find_word, free_symbols, merge_long, merge_short, merges_free, merges_init,
)
from edgeonnx_ext._nfc cimport nfc_free, nfc_is_same, nfc_load, nfc_text
from edgeonnx_ext._pieces cimport PIECE_BYTES, PIECE_IDS, Piece, is_piece, piece_place, piece_store
from edgeonnx_ext._rows cimport Tokenizer
from edgeonnx_ext._scan cimport GPT2, LLAMA3, QWEN2, WHOLE, Pattern, piece_end, scanner_init
from edgeonnx_ext._section cimport (
    BATCH, Pending, Rules, Work, fill_section, load_key, note_positions, reserve_words, section_free, section_new,
)
from edgeonnx_ext._spans cimport push_added_span, span_piece
from edgeonnx_ext._starts cimport DIGITS_KEPT, DIGITS_RUNS, DIGITS_SINGLE, mark_starts
from edgeonnx_ext._text cimport Text


cdef enum:
    MOST_KEPT_SYMBOLS = 1 << 16  # of a long piece; more are freed after its text


# Where the ids of a text go.
cdef struct Sink:
    Ids* ids
    Ids* spans  # or NULL
    size_t base  # ids before this text
    size_t target  # ids after which it may stop
    const int32_t* origins  # of a normalized text, the text's character of each of its characters; else NULL


cdef void* new_work() noexcept nogil:
    return section_new()


cdef void free_work(void* work) noexcept nogil:
    section_free(<Work*> work)


# --- pieces to ids ----------------------------------------------------------------------------------------------------

cdef size_t merge_piece(const Rules* rules, Work* work, const Pending* piece, int32_t* ids) noexcept nogil:
    """Write the ids of a piece of at most CACHE_KEY bytes that no cache holds, and keep them; return how many."""
    cdef size_t count = 1
    ids[0] = find_word(&rules.merges, piece.start, piece.length)
    if ids[0] == NO_ID:
        count = merge_short(&rules.merges, piece.start, piece.length, ids)
    if piece.length <= PIECE_BYTES and count <= PIECE_IDS:
        piece_store(piece.place, piece.key, piece.length, ids, count)
    else:
        cache_store(&work.words, piece.key, piece.length, ids, count)
    return count


cdef Py_ssize_t merge_long_piece(const Rules* rules, Work* work, const uint8_t* piece, size_t length,
                                 int32_t* ids) noexcept nogil:
    """As merge_piece, for a piece that is too long for the cache; -1: no memory."""
    cdef Py_ssize_t written = 0
    cdef int32_t count, place
    ids[0] = find_word(&rules.merges, piece, length)
    if ids[0] != NO_ID:
        return 1
    count = merge_long(&rules.merges, &work.merge, piece, length)
    if count < 0:
        return -1
    for place in range(count):
        if work.merge.symbols[place].width:
            ids[written] = work.merge.symbols[place].id
            written += 1
    return written


cdef inline const uint8_t* next_start(Work* work) noexcept nogil:
    """The next marked start; there is one, the section's end at the latest."""
    cdef uint64_t bits = work.bits
    while not bits:
        work.word += 1
        bits = work.starts.items[work.word]
    work.bits = bits & (bits - 1)
    return work.section.items + 64 * work.word + lowest_bit(bits)


cdef inline int mark(const Rules* rules, Work* work, Pattern pattern, size_t length) noexcept nogil:
    """Mark where the pieces of an ASCII section start: 1; 0 if only the scanner can do it, -1 if there is no memory."""
    if pattern == WHOLE or not LOW_BYTE_FIRST:
        return 0
    if not reserve_words(&work.starts, length // 64 + 1):
        return -1
    if not mark_starts(work.section.items, length, pattern, rules.digits, work.starts.items):
        return 0
    work.word = 0
    work.bits = work.starts.items[0] & ~<uint64_t> 1  # not the first piece's own start
    return 1


cdef inline Py_ssize_t find_pieces(const Rules* rules, Work* work, Pattern pattern, bint marked, const uint8_t** at,
                                   const uint8_t* end) noexcept nogil:
    """Cut the next pieces, at most BATCH, and ask the memory for their places in the cache; return how many."""
    cdef Py_ssize_t count = 0
    cdef const uint8_t* start = at[0]
    cdef const uint8_t* stop
    cdef Pending* piece
    while count < BATCH and start < end:
        stop = next_start(work) if marked else piece_end(&rules.scanner, pattern, start, end)
        piece = work.pending + count
        piece.start = start
        piece.length = stop - start
        if piece.length <= CACHE_KEY:
            load_key(piece.key, start, work.mask, piece.length)
        if piece.length <= PIECE_BYTES:
            piece.place = piece_place(&work.pieces, piece.key, piece.length)
            fetch_ahead(piece.place)
        count += 1
        start = stop
    at[0] = start
    return count


cdef Py_ssize_t add_rare(const Rules* rules, Work* work, const Pending* piece, int32_t* out) noexcept nogil:
    """Write the ids of a piece that is not among the short cached ones; return how many, or -1: no memory."""
    cdef const CacheLine* line
    if piece.length > CACHE_KEY:
        return merge_long_piece(rules, work, piece.start, piece.length, out)
    line = cache_find(&work.words, piece.key, piece.length)
    if line == NULL:
        return merge_piece(rules, work, piece, out)
    memcpy(out, line.ids, line.id_count * sizeof(int32_t))
    return line.id_count


cdef inline bint cut_pieces(const Rules* rules, Work* work, Pattern pattern, bint ascii, size_t length, size_t target,
                            Ids* ids) noexcept nogil:
    """Append the ids of the section; False if there is no memory."""
    cdef const uint8_t* at = work.section.items
    cdef const uint8_t* end = at + length
    cdef const Pending* piece
    cdef const Pending* last
    cdef const Piece* found
    cdef int32_t* out
    cdef int32_t* enough
    cdef Py_ssize_t count
    cdef int marked = mark(rules, work, pattern, length) if ascii else 0
    # A piece has at most one id a byte; a cached one is copied with one id too many.
    if marked < 0 or not reserve_ids(ids, length + PIECE_IDS + 1):
        return False
    out = ids.items + ids.count
    enough = out + min(length, target - ids.count)
    while at < end and out < enough:
        piece = work.pending
        last = piece + find_pieces(rules, work, pattern, marked, &at, end)
        while piece < last and out < enough:
            found = piece.place
            if piece.length <= PIECE_BYTES and not is_piece(found, piece.key, piece.length):
                found += 1
            if piece.length <= PIECE_BYTES and is_piece(found, piece.key, piece.length):
                memcpy(out, found.ids, (PIECE_IDS + 1) * sizeof(int32_t))
                count = found.id_count
            else:
                count = add_rare(rules, work, piece, out)
                if count < 0:
                    return False
            out += count
            piece += 1
    ids.count = out - ids.items
    return True


cdef bint tokenize_section(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                           size_t target, Ids* ids) noexcept nogil:
    """Append the ids of text[start:end], in which no added token stands; False if there is no memory."""
    cdef Py_ssize_t length
    if start == end:
        return True
    length = fill_section(rules, work, text, start, end)
    if length < 0:
        return False
    if rules.scanner.pattern == GPT2:
        return cut_pieces(rules, work, GPT2, text.ascii, length, target, ids)
    if rules.scanner.pattern == LLAMA3:
        return cut_pieces(rules, work, LLAMA3, text.ascii, length, target, ids)
    if rules.scanner.pattern == QWEN2:
        return cut_pieces(rules, work, QWEN2, text.ascii, length, target, ids)
    return cut_pieces(rules, work, WHOLE, text.ascii, length, target, ids)


cdef bint span_section(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                       const Sink* sink) noexcept nogil:
    """As tokenize_section, with spans."""
    cdef const uint8_t* at
    cdef const uint8_t* stop
    cdef const uint8_t* last
    cdef Py_ssize_t length
    if start == end:
        return True
    length = fill_section(rules, work, text, start, end)
    if length < 0 or not note_positions(work, length, text, start, sink.origins):
        return False
    at = work.section.items
    last = at + length
    while at < last and sink.ids.count < sink.target:
        stop = piece_end(&rules.scanner, rules.scanner.pattern, at, last)
        if not span_piece(rules, work, at, stop - at, sink.base, sink.ids, sink.spans):
            return False
        at = stop
    return True


# --- a text -----------------------------------------------------------------------------------------------------------

cdef bint add_section(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                      const Sink* sink) noexcept nogil:
    if sink.spans == NULL:
        return tokenize_section(rules, work, text, start, end, sink.target, sink.ids)
    return span_section(rules, work, text, start, end, sink)


cdef bint add_match(const Rules* rules, const Text* text, const Match* match, const Sink* sink) noexcept nogil:
    cdef bint first = sink.ids.count == sink.base
    if sink.spans != NULL and not push_added_span(rules, text, match, sink.origins, first, sink.spans):
        return False
    return push_id(sink.ids, match.token_id)


cdef bint between(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                  const Sink* sink) noexcept nogil:
    """Do what stands between tokens of the plain set: the normalized set, and sections."""
    cdef Match match
    while sink.ids.count < sink.target:
        if not next_added(&rules.normalized, text, start, end, &match):
            return add_section(rules, work, text, start, end, sink)
        if not add_section(rules, work, text, start, match.start, sink) or not add_match(rules, text, &match, sink):
            return False
        start = match.end
    return True


cdef bint normalize_between(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                            const Sink* sink) noexcept nogil:
    """As `between`, of what NFC makes of text[start:end]: as a rule, the same."""
    cdef Text normal
    cdef Sink aligned = sink[0]
    if not rules.normalizes or nfc_is_same(&rules.nfc, text, start, end):
        return between(rules, work, text, start, end, sink)
    work.normal.count = work.origins.count = 0
    if not nfc_text(&rules.nfc, text, start, end, &work.normal, &work.origins if sink.spans != NULL else NULL):
        return False
    normal.data = work.normal.items
    normal.kind = 4
    normal.ascii = False
    normal.length = work.normal.count
    if sink.spans != NULL:
        aligned.origins = work.origins.items
    return between(rules, work, &normal, 0, normal.length, &aligned)


cdef bint tokenize_all(const Rules* rules, Work* work, const Text* text, const Sink* sink) noexcept nogil:
    cdef Match match
    cdef Py_ssize_t start = 0
    while sink.ids.count < sink.target:
        if not next_added(&rules.plain, text, start, text.length, &match):
            return normalize_between(rules, work, text, start, text.length, sink)
        if not normalize_between(rules, work, text, start, match.start, sink):
            return False
        if not add_match(rules, text, &match, sink):
            return False
        start = match.end
    return True


cdef bint tokenize_text(const void* rules, void* memory, const Text* text, size_t enough, Ids* ids,
                        Ids* spans) noexcept nogil:
    """See TokenizeText in _rows.pxd."""
    cdef Work* work = <Work*> memory
    cdef Sink sink
    cdef bint done
    sink.ids = ids
    sink.spans = spans
    sink.origins = NULL
    sink.base = ids.count
    sink.target = ids.count + min(enough, (<size_t> -1) // 4)
    done = tokenize_all(<const Rules*> rules, work, text, &sink)
    if work.merge.room > MOST_KEPT_SYMBOLS:
        free_symbols(&work.merge)
    return done


# --- building ---------------------------------------------------------------------------------------------------------

cdef class BpeTokenizer(Tokenizer):
    """Text to ids, exactly as Hugging Face `tokenizers` gives them. See `reference/bpe.py`."""

    cdef Rules rules
    cdef list tables  # arrays that the rules point into

    def __cinit__(self, model):
        self.engine.rules = &self.rules
        self.engine.tokenize = tokenize_text
        self.engine.new_work = new_work
        self.engine.free_work = free_work
        self.rules.digits = DIGITS_KEPT
        if model.digits is not None:
            self.rules.digits = DIGITS_RUNS if model.digits == "runs" else DIGITS_SINGLE
        self.rules.prefix_space = model.add_prefix_space
        self.rules.ignore_merges = model.ignore_merges
        self.rules.trim_offsets = model.trim.spaces
        self.rules.trim_keeps_prefix = model.trim.keeps_prefix
        self.tables = [scanner_init(&self.rules.scanner, model.pattern, model.digits)]
        self.rules.normalizes = model.nfc
        if model.nfc:
            self.tables.append(nfc_load(&self.rules.nfc))
        added_init(&self.rules.plain, tuple(token for token in model.added_tokens if not token.normalized))
        added_init(&self.rules.normalized, tuple(token for token in model.added_tokens if token.normalized))
        merges_init(&self.rules.merges, model.merges, model.vocab, model.ignore_merges)
        self.set_templates(model.single, model.pair)

    def __dealloc__(self):
        added_free(&self.rules.plain)
        added_free(&self.rules.normalized)
        merges_free(&self.rules.merges)
        nfc_free(&self.rules.nfc)
