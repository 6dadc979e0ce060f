"""Compiled WordPiece: BERT's chain from text to ids. See `reference/wordpiece.py` for arguments and errors.

`_bert.pxd` does every step exactly, one character after the other; `_parts.pxd` avoids most of that work.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

import numpy as np

from edgeonnx_ext import _unicode

from edgeonnx_ext._added cimport Match, added_free, added_init, is_white, next_added
from edgeonnx_ext._arrays cimport Ids
from edgeonnx_ext._bert cimport (
    ALONE, LETTER, NOWHERE, SPACE, Action, Record, Rules, Work, add_char, emit, end_word, flush, free_arrays,
    own_action, record_index,
)
from edgeonnx_ext._cache cimport cache_free, cache_init
from edgeonnx_ext._parts cimport APART, OTHER, PLAIN, action_of, add_narrow, add_wide, alone_id
from edgeonnx_ext._rows cimport Tokenizer
from edgeonnx_ext._text cimport Text, char_at
from edgeonnx_ext._trie cimport NO_TOKEN, Trie, trie_add, trie_edge, trie_free, trie_init
from edgeonnx_ext._words cimport WORD_KEY, words_add, words_free, words_init


cdef enum:
    CACHE_PAIRS = 2048  # 256 KiB


# --- a text -----------------------------------------------------------------------------------------------------------

cdef void add_spans(const Rules* rules, Work* work, const Text* text, Py_ssize_t start, Py_ssize_t end,
                    size_t target) noexcept nogil:
    """As add_narrow, for any text, with spans."""
    cdef Py_ssize_t index = start
    while index < end and work.ids.count < target:
        add_char(rules, work, char_at(text, index), <uint32_t> index)
        index += 1
    flush(rules, work)
    end_word(rules, work)


cdef inline void emit_match(const Rules* rules, Work* work, const Text* text, const Match* match) noexcept nogil:
    """Append an added token."""
    cdef Py_ssize_t first = match.start, last = match.end - 1
    # A content neither begins nor ends with whitespace here (wordpiece._refuse_what_trimming_changes).
    while rules.trims_spans and is_white(char_at(text, first)):
        first += 1
    while rules.trims_spans and is_white(char_at(text, last)):
        last -= 1
    emit(work, match.token_id, <uint32_t> first, <uint32_t> last)


cdef bint tokenize_text(const void* engine_rules, void* engine_work, const Text* text, size_t enough, Ids* ids,
                        Ids* spans) noexcept nogil:
    """See TokenizeText in _rows.pxd."""
    cdef const Rules* rules = <const Rules*> engine_rules
    cdef Work* work = <Work*> engine_work
    cdef Py_ssize_t index = 0, end
    cdef size_t target = ids.count + enough
    cdef Match match
    cdef bint found = True
    work.ids = ids
    work.spans = spans
    work.out_of_memory = False
    while found and ids.count < target and not work.out_of_memory:
        found = next_added(&rules.added, text, index, text.length, &match)
        end = match.start if found else text.length
        if spans != NULL:
            add_spans(rules, work, text, index, end, target)
        elif text.kind == 1:
            add_narrow(rules, work, text, index, end, target)
        else:
            add_wide(rules, work, text, index, end, target)
        if found:
            emit_match(rules, work, text, &match)
            index = match.end
    return not work.out_of_memory


# --- work memory ------------------------------------------------------------------------------------------------------

cdef void* new_work() noexcept nogil:
    cdef Work* work = <Work*> calloc(1, sizeof(Work))
    if work != NULL and not cache_init(&work.cache, CACHE_PAIRS):
        free(work)
        return NULL
    return work


cdef void free_work(void* engine_work) noexcept nogil:
    cdef Work* work = <Work*> engine_work
    free_arrays(work)
    cache_free(&work.cache)
    free(work)


# --- the tokenizer ----------------------------------------------------------------------------------------------------

cdef class WordPieceTokenizer(Tokenizer):
    """BERT's tokenizer: text to ids, exactly as Hugging Face `tokenizers`. See `reference/wordpiece.py`."""

    cdef Rules rules
    cdef Action* actions
    cdef object tables  # owns the memory that rules point into

    def __cinit__(self, model):
        self.engine.rules = &self.rules
        self.engine.tokenize = tokenize_text
        self.engine.new_work = new_work
        self.engine.free_work = free_work
        self.set_templates(model.single, model.pair)
        if not trie_init(&self.rules.vocab):
            raise MemoryError
        for token, token_id in model.vocab.items():
            if not trie_add(&self.rules.vocab, token, token_id):
                raise MemoryError
        added_init(&self.rules.added, model.added_tokens)
        self.rules.trims_spans = model.trims_spans
        self.rules.unk_id = model.unk_id
        self.rules.max_word_chars = model.max_word_chars
        self.rules.continuing = find_node(&self.rules.vocab, model.prefix)
        self.set_characters(model)
        self.set_words(model.vocab)

    def __dealloc__(self):
        words_free(&self.rules.words)
        trie_free(&self.rules.vocab)
        added_free(&self.rules.added)
        free(self.actions)

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
        self.rules.lower_bits = 0x2020202020202020ULL if model.lowercase else 0
        with nogil:
            for char in range(0x110000):
                self.actions[record_index(&self.rules, char)] = own_action(&self.rules, char)
            for char in range(256):
                set_narrow(&self.rules, char)

    cdef object set_words(self, vocab):
        """Collect the tokens that a part of PLAIN characters can be."""
        cdef Py_ssize_t longest = min(<size_t> WORD_KEY, self.rules.max_word_chars)
        words = [token for token in vocab if token.isascii() and 0 < len(token) <= longest]
        cdef bytes word
        cdef const uint8_t* data
        if not words_init(&self.rules.words, len(words)):
            raise MemoryError
        for token in words:
            word = token.encode()
            data = word
            if all_plain(&self.rules, data, len(word)):
                words_add(&self.rules.words, data, len(word), vocab[token])


cdef bint all_plain(const Rules* rules, const uint8_t* data, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(length):
        if rules.part_class[data[index]] != PLAIN:
            return False
    return True


cdef void set_narrow(Rules* rules, uint32_t char) noexcept nogil:
    """Fill the tables of Latin-1 characters."""
    cdef const Action* action = action_of(rules, char)
    cdef uint32_t expected = char + 32 if rules.lowercase and 65 <= char <= 90 else char
    rules.part_class[char] = APART if action.kind == SPACE or action.kind == ALONE else OTHER
    if action.kind == LETTER and 0 < char < 128 and (action.char if action.char else char) == expected:
        rules.part_class[char] = PLAIN
    rules.is_space[char] = action.kind == SPACE
    rules.alone_id[char] = NO_TOKEN
    if action.kind == ALONE:
        rules.alone_id[char] = alone_id(rules, action.char if action.char else char)


cdef uint32_t find_node(const Trie* trie, str prefix) except? 0:
    """The node that `prefix` leads to, the root for "", or NOWHERE."""
    cdef uint32_t node = 0
    for char in prefix:
        node = trie_edge(trie, node, ord(char)).child
        if node == 0:
            return <uint32_t> NOWHERE
    return node
