"""Compiled WordPiece: texts to ragged ids, and those into the caller's buffers, with the GIL released.

`_bert.pxd` does a text; this file does batches: it holds the texts, applies truncation and the template, owns the ids.
"""

from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np

from edgeonnx_ext import _checks, _unicode
from edgeonnx_ext.wordpiece import SEQUENCE_A as PY_SEQUENCE_A
from edgeonnx_ext.wordpiece import SEQUENCE_B as PY_SEQUENCE_B

from edgeonnx_ext._bert cimport (
    NOWHERE, Action, Ids, Record, Rules, Work,
    add_char, emit_id, end_word, flush, free_work, own_action, push_id, record_index,
)
from edgeonnx_ext._trie cimport NO_TOKEN, Trie, trie_extend, trie_free, trie_init, trie_step


cdef int64_t SEQUENCE_A = PY_SEQUENCE_A
cdef int64_t SEQUENCE_B = PY_SEQUENCE_B


cdef struct Piece:
    int64_t source  # a special token's id, or SEQUENCE_A, SEQUENCE_B
    int32_t type_id


cdef struct Text:
    const void* data
    int kind
    Py_ssize_t length


cdef inline uint32_t char_at(const Text* text, Py_ssize_t index) noexcept nogil:
    if text.kind == 1:
        return (<const uint8_t*> text.data)[index]
    if text.kind == 2:
        return (<const uint16_t*> text.data)[index]
    return (<const uint32_t*> text.data)[index]


cdef Py_ssize_t find_surrogate(const Text* text) noexcept nogil:
    """The position of the first lone surrogate, or -1."""
    cdef Py_ssize_t index
    if text.kind == 1:
        return -1
    for index in range(text.length):
        if (char_at(text, index) & 0x1FF800) == 0xD800:
            return index
    return -1


cdef Py_ssize_t match_added(const Rules* rules, const Text* text, Py_ssize_t start, int32_t* token_id) noexcept nogil:
    """The end of the longest added token that begins at `start`, or `start`."""
    cdef uint32_t node = 0
    cdef Py_ssize_t index, end = start
    for index in range(start, text.length):
        node = trie_step(rules.added, node, char_at(text, index))
        if node == 0:
            break
        if rules.added.token_at[node] != NO_TOKEN:
            token_id[0] = rules.added.token_at[node]
            end = index + 1
    return end


cdef void tokenize_text(const Rules* rules, Work* work, const Text* text, size_t enough) noexcept nogil:
    """Append the ids of a text, at least the first `enough` of them."""
    cdef size_t target = work.ids.count + enough
    cdef Py_ssize_t index = 0, end
    cdef int32_t token_id = NO_TOKEN
    while index < text.length and work.ids.count < target:
        end = match_added(rules, text, index, &token_id)
        if end == index:
            add_char(rules, work, char_at(text, index))
            index += 1
            continue
        flush(rules, work)
        end_word(rules, work)
        emit_id(work, token_id)
        index = end
    flush(rules, work)
    end_word(rules, work)
    work.marks.count = 0


cdef void longest_first(size_t* first, size_t* second, size_t budget) noexcept nogil:
    """Cut the two lengths as tokenizers' LongestFirst does (utils/truncation.rs)."""
    cdef bint swap = first[0] > second[0]
    cdef size_t shorter = min(first[0], second[0]), longer
    if first[0] + second[0] <= budget:
        return
    longer = max(shorter, budget - shorter) if shorter <= budget else shorter
    if shorter + longer > budget:
        shorter = budget // 2
        longer = budget - shorter
    first[0] = longer if swap else shorter
    second[0] = shorter if swap else longer


cdef bint fill_template(Tokenized out, const Piece* pieces, Py_ssize_t count, const int32_t* ids,
                        size_t first, size_t second, size_t second_start) noexcept nogil:
    """Append one row; False if there is no memory."""
    cdef Py_ssize_t index
    cdef size_t position, start, end
    cdef bint room = True
    for index in range(count):
        if pieces[index].source >= 0:
            room = push_id(&out.ids, <int32_t> pieces[index].source) and room
            room = push_id(&out.type_ids, pieces[index].type_id) and room
            continue
        start = 0 if pieces[index].source == SEQUENCE_A else second_start
        end = start + (first if pieces[index].source == SEQUENCE_A else second)
        for position in range(start, end):
            room = push_id(&out.ids, ids[position]) and room
            room = push_id(&out.type_ids, pieces[index].type_id) and room
    return room


cdef bint tokenize_row(const Rules* rules, Work* work, const Text* text, const Text* pair, size_t budget,
                       const Piece* pieces, Py_ssize_t count, Tokenized out) noexcept nogil:
    """Append the row of a text, or of a pair; False if there is no memory."""
    cdef size_t first, second = 0, second_start
    work.ids.count = 0
    # Of a pair all tokens are counted: which of two overlong texts keeps the odd token depends on which is longer.
    tokenize_text(rules, work, text, budget if pair == NULL else <size_t> -1 // 2)
    first = second_start = work.ids.count
    if pair == NULL:
        first = min(first, budget)
    else:
        tokenize_text(rules, work, pair, <size_t> -1 // 2)
        second = work.ids.count - second_start
        longest_first(&first, &second, budget)
    return fill_template(out, pieces, count, work.ids.items, first, second, second_start) and not work.out_of_memory


cdef Text* view_texts(tuple texts) except NULL:
    """Point at the texts' code points; the caller keeps the texts alive and frees the result."""
    cdef Py_ssize_t row, rows = len(texts)
    cdef Text* views = <Text*> malloc((rows + 1) * sizeof(Text))
    if views == NULL:
        raise MemoryError
    for row in range(rows):
        views[row].data = PyUnicode_DATA(texts[row])
        views[row].kind = PyUnicode_KIND(texts[row])
        views[row].length = PyUnicode_GET_LENGTH(texts[row])
    return views


cdef object refuse_surrogates(const Text* views, Py_ssize_t rows, str name):
    cdef Py_ssize_t row = 0, position = -1
    with nogil:
        while row < rows:
            position = find_surrogate(&views[row])
            if position >= 0:
                break
            row += 1
    if position >= 0:
        _checks.raise_surrogate(name, row, position, char_at(&views[row], position))


cdef class Tokenized:
    """The ids of a batch, ragged, in C memory; made by `WordPieceTokenizer.tokenize`. See `_reference.Tokenized`."""

    cdef Ids ids
    cdef Ids type_ids
    cdef int32_t pad_id
    cdef int32_t pad_type_id
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t width
    cdef Ids row_lengths

    def __dealloc__(self):
        free(self.ids.items)
        free(self.type_ids.items)
        free(self.row_lengths.items)

    @property
    def lengths(self):
        """A new int64 array (rows,): tokens of each row."""
        return np.array([self.row_lengths.items[row] for row in range(self.rows)], dtype=np.int64)

    def write_into(self, input_ids, attention_mask, token_type_ids):
        """Write ids, mask and type ids, padded on the right, into the caller's buffers."""
        _checks.id_buffers(
            self.rows, self.width, input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        cdef int64_t[:, ::1] ids = input_ids
        cdef int64_t[:, ::1] mask = attention_mask
        cdef int64_t[:, ::1] types = token_type_ids
        cdef Py_ssize_t row, column, length, start = 0, width = ids.shape[1]
        with nogil:
            for row in range(self.rows):
                length = self.row_lengths.items[row]
                for column in range(length):
                    ids[row, column] = self.ids.items[start + column]
                    mask[row, column] = 1
                    types[row, column] = self.type_ids.items[start + column]
                for column in range(length, width):
                    ids[row, column] = self.pad_id
                    mask[row, column] = 0
                    types[row, column] = self.pad_type_id
                start += length


cdef class WordPieceTokenizer:
    """BERT's tokenizer: text to ids, exactly as Hugging Face `tokenizers`. See `_reference.WordPieceTokenizer`."""

    cdef Rules rules
    cdef Trie vocab
    cdef Trie added
    cdef Action* actions
    cdef Piece* templates  # the single template, then the pair template
    cdef Py_ssize_t single_pieces
    cdef Py_ssize_t pair_pieces
    cdef Py_ssize_t single_specials
    cdef Py_ssize_t pair_specials
    cdef int32_t pad_id
    cdef int32_t pad_type_id
    cdef object tables  # owns the memory that rules point into

    def __cinit__(self, model, *, pad_id, pad_type_id=0):
        self.pad_id = _checks.token_id(pad_id, "pad_id")
        self.pad_type_id = _checks.token_id(pad_type_id, "pad_type_id")
        if not (trie_init(&self.vocab) and trie_init(&self.added)):
            raise MemoryError
        self.rules.vocab = &self.vocab
        self.rules.added = &self.added
        for token, token_id in model.vocab.items():
            add_token(&self.vocab, token, token_id)
        for token in model.added_tokens:
            add_token(&self.added, token.content, token.token_id)
        self.rules.unk_id = model.unk_id
        self.rules.max_word_chars = model.max_word_chars
        self.rules.continuing = find_node(&self.vocab, model.prefix)
        self.set_templates(model)
        self.set_characters(model)

    def __dealloc__(self):
        trie_free(&self.vocab)
        trie_free(&self.added)
        free(self.actions)
        free(self.templates)

    cdef object set_templates(self, model):
        pieces = (*model.single, *model.pair)
        self.templates = <Piece*> malloc(len(pieces) * sizeof(Piece))
        if self.templates == NULL:
            raise MemoryError
        for index, piece in enumerate(pieces):
            self.templates[<Py_ssize_t> index].source = piece.source
            self.templates[<Py_ssize_t> index].type_id = piece.type_id
        self.single_pieces = len(model.single)
        self.pair_pieces = len(model.pair)
        self.single_specials = model.special_count(pair=False)
        self.pair_specials = model.special_count(pair=True)

    cdef object set_characters(self, model):
        """Point at the Unicode table, and work out what each of its records does under the model's flags."""
        table = _unicode.load_table()
        cdef const uint16_t[::1] stage1 = table.stage1
        cdef const uint16_t[::1] stage2 = table.stage2
        cdef const uint8_t[::1] records = table.records.view(np.uint8)
        cdef const uint32_t[::1] pool = table.pool
        cdef Py_ssize_t count = len(table.records)
        cdef uint32_t char
        self.tables = table
        self.actions = <Action*> malloc(count * sizeof(Action))
        if self.actions == NULL:
            raise MemoryError
        self.rules.stage1 = &stage1[0]
        self.rules.stage2 = &stage2[0]
        self.rules.records = <const Record*> &records[0]
        self.rules.pool = &pool[0]
        self.rules.actions = self.actions
        self.rules.block_shift = table.block_shift
        self.rules.clean_text = model.clean_text
        self.rules.handle_chinese_chars = model.handle_chinese_chars
        self.rules.strip_accents = model.strip_accents
        self.rules.lowercase = model.lowercase
        with nogil:
            for char in range(0x110000):
                self.actions[record_index(&self.rules, char)] = own_action(&self.rules, char)

    def tokenize(self, texts, pairs, max_length):
        """Tokenize texts, or pairs of texts, to at most `max_length` tokens a row, special tokens included."""
        cdef tuple items = _checks.text_tuple(texts)
        cdef tuple seconds = _checks.pair_tuple(items, pairs)
        cdef Py_ssize_t specials = self.single_specials if seconds is None else self.pair_specials
        cdef Py_ssize_t limit = _checks.length_limit(max_length, specials)
        cdef Tokenized out = Tokenized()
        out.rows = len(items)
        out.pad_id = self.pad_id
        out.pad_type_id = self.pad_type_id
        cdef Text* views = NULL
        cdef Text* pair_views = NULL
        try:
            views = view_texts(items)
            refuse_surrogates(views, out.rows, "texts")
            if seconds is not None:
                pair_views = view_texts(seconds)
                refuse_surrogates(pair_views, out.rows, "pairs")
            self.fill(out, views, pair_views, limit - specials)
        finally:
            free(views)
            free(pair_views)
        return out

    cdef object fill(self, Tokenized out, const Text* views, const Text* pair_views, size_t budget):
        cdef const Piece* pieces = self.templates if pair_views == NULL else self.templates + self.single_pieces
        cdef Py_ssize_t count = self.single_pieces if pair_views == NULL else self.pair_pieces
        cdef Work work
        cdef Py_ssize_t row
        cdef size_t before
        cdef const Text* pair = NULL
        cdef bint room = True
        memset(&work, 0, sizeof(work))
        with nogil:
            for row in range(out.rows):
                before = out.ids.count
                if pair_views != NULL:
                    pair = &pair_views[row]
                room = tokenize_row(&self.rules, &work, &views[row], pair, budget, pieces, count, out)
                room = room and push_id(&out.row_lengths, <int32_t> (out.ids.count - before))
                if not room:
                    break
                out.width = max(out.width, <Py_ssize_t> (out.ids.count - before))
            free_work(&work)
        if not room:
            raise MemoryError(f"row {row}: expected memory for its ids, found none")


cdef object add_token(Trie* trie, str token, int32_t token_id):
    cdef uint32_t node = 0
    for char in token:
        node = trie_extend(trie, node, ord(char))
        if node == 0:
            raise MemoryError
    if node:
        trie.token_at[node] = token_id


cdef uint32_t find_node(const Trie* trie, str prefix) except? 0:
    """The node that `prefix` leads to, the root for "", or NOWHERE."""
    cdef uint32_t node = 0
    for char in prefix:
        node = trie_step(trie, node, ord(char))
        if node == 0:
            return <uint32_t> NOWHERE
    return node
