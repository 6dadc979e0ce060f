# The characters of the text that each token of byte-level BPE covers, as `Encoding.offsets` of the library gives them.

from libc.stdint cimport int32_t, uint8_t, uint32_t

from edgeonnx_ext._added cimport Match, is_white
from edgeonnx_ext._arrays cimport Ids, push_id, push_span
from edgeonnx_ext._merge cimport NO_ID, Merges, Symbol, find_word, merge_long, reserve_symbols
from edgeonnx_ext._section cimport Rules, Work
from edgeonnx_ext._text cimport Text, char_at


# A token's place in a piece, counted in bytes of UTF-8 of the characters that stand for the piece's bytes, as the
# library counts it. Bytes that vanish have a place there but no token, so that later tokens seem to stand earlier.
cdef struct Cursor:
    const uint8_t* kept  # the next byte that a token may cover
    const uint8_t* seen  # the byte at `seen_place`
    size_t seen_place
    size_t place


cdef inline const uint8_t* byte_at(const Merges* merges, Cursor* cursor, size_t place) noexcept nogil:
    """Move on to the byte whose character covers `place`."""
    while cursor.seen_place + merges.byte_widths[cursor.seen[0]] <= place:
        cursor.seen_place += merges.byte_widths[cursor.seen[0]]
        cursor.seen += 1
    return cursor.seen


cdef inline void count_spaces(const Merges* merges, Cursor* cursor, size_t width, bint whole, int32_t* before,
                              int32_t* behind) noexcept nogil:
    """Count the spaces at both ends of the next token: it covers bytes of `width` in all, of a `whole` piece every one,
    else those that do not vanish.
    """
    cdef bint only = True
    before[0] = behind[0] = 0
    while width:
        if whole or merges.byte_ids[cursor.kept[0]] != NO_ID:
            width -= merges.byte_widths[cursor.kept[0]]
            if cursor.kept[0] == c" ":
                behind[0] += 1
                before[0] += only
            else:
                behind[0] = 0
                only = False
        cursor.kept += 1


cdef inline bint push_trimmed(const Rules* rules, bint first, int32_t start, int32_t end, int32_t before,
                              int32_t behind, Ids* spans) noexcept nogil:
    """Append a span, without the token's spaces if they are trimmed, as process_offsets in byte_level.rs does it.

    The one space that the first token of a window keeps makes complements (see TokenizeText in _rows.pxd).
    """
    cdef bint may_keep = rules.trim_keeps_prefix and before == 1
    cdef int32_t inner = end
    if not rules.trim_offsets:
        return push_span(spans, start, end)
    if behind and end >= behind:
        inner = end - behind
    if may_keep and (first or start == 0):
        return push_span(spans, start, max(inner, start))
    start = min(start + before, end)
    end = max(inner, start)
    if may_keep:
        # Only an end that the start would push is one less together with it.
        end = ~end if inner < start else end
        start = ~start
    return push_span(spans, start, end)


cdef inline bint span_piece(const Rules* rules, Work* work, const uint8_t* piece, size_t length, size_t base, Ids* ids,
                            Ids* spans) noexcept nogil:
    """Append the ids and spans of a piece; False if there is no memory."""
    cdef const int32_t* positions = work.positions.items + (piece - work.section.items)
    cdef const Merges* merges = &rules.merges
    cdef int32_t count = 1, place, before = 0, behind = 0, start
    cdef Symbol* symbol
    cdef Cursor cursor
    cdef size_t index
    cdef int32_t token_id = find_word(merges, piece, length) if rules.ignore_merges else NO_ID
    if token_id == NO_ID:
        count = merge_long(merges, &work.merge, piece, length)
        if count < 0:
            return False
    elif not reserve_symbols(&work.merge, 1):
        return False
    else:
        work.merge.symbols[0].id = token_id
        work.merge.symbols[0].width = 0
        for index in range(length):
            work.merge.symbols[0].width += merges.byte_widths[piece[index]]
    cursor.kept = cursor.seen = piece
    cursor.place = cursor.seen_place = 0
    for place in range(count):
        symbol = work.merge.symbols + place
        if symbol.width == 0:
            continue
        count_spaces(merges, &cursor, symbol.width, token_id != NO_ID, &before, &behind)
        start = positions[byte_at(merges, &cursor, cursor.place) - piece]
        cursor.place += symbol.width
        if not push_trimmed(
            rules, ids.count == base, start, positions[byte_at(merges, &cursor, cursor.place - 1) - piece] + 1,
            before, behind, spans,
        ):
            return False
        if not push_id(ids, symbol.id):
            return False
    return True


cdef inline bint is_blank(uint32_t char) noexcept nogil:
    """Whitespace, or the character that stands for a space."""
    return is_white(char) or char == 0x120


cdef inline bint push_added_span(const Rules* rules, const Text* text, const Match* match, const int32_t* origins,
                                 bint first, Ids* spans) noexcept nogil:
    """Append the span of an added token; whitespace that it took along is trimmed like a token's own.

    `origins` is that of note_positions.
    """
    cdef int32_t before = 0, behind = 0, length = <int32_t> (match.end - match.start)
    cdef int32_t start = <int32_t> match.start, last = <int32_t> match.end - 1
    while before < length and is_blank(char_at(text, match.start + before)):
        before += 1
    while behind < length and is_blank(char_at(text, match.end - 1 - behind)):
        behind += 1
    if origins != NULL:
        start = origins[start]
        last = origins[last]
    return push_trimmed(rules, first, start, last + 1, before, behind, spans)
