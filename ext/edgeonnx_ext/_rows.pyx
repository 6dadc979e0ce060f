"""What every compiled tokenizer shares: from Python texts to the ragged rows of a `Tokenized`, with the GIL released.

See `reference/rows.py` for arguments and errors. A tokenizer is a subclass that brings its Engine; see `_rows.pxd`.
"""

from cpython.unicode cimport PyUnicode_Check, PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import threading

import numpy as np

from edgeonnx_ext import _checks, _checks_rows
from edgeonnx_ext.layout import STRATEGIES

from edgeonnx_ext._arrays cimport Ids
from edgeonnx_ext._cut cimport (
    DONE, NO_MEMORY, STRIDE_TOO_LONG, TOO_SHORT, Outcome, Part, Plan, Row, cut_row, free_part,
)
from edgeonnx_ext._text cimport Text, char_at, find_surrogate
from edgeonnx_ext._tokenized cimport Piece, Tokenized


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)

cdef size_t ALL = <size_t> -1 // 4  # more ids than any text has
cdef size_t THREAD_CHARACTERS = 16384  # fewer characters for each are not worth another thread

# --- tokenizing -------------------------------------------------------------------------------------------------------

cdef Outcome tokenize_row(const Engine* engine, void* work, const Text* text, const Text* pair, const Plan* plan,
                          int64_t source, bint spans, Part* part) noexcept nogil:
    cdef Row row
    cdef Ids* span_ids = &part.spans if spans else NULL
    # Of a pair all tokens are counted: which of two overlong texts keeps the odd token depends on which is longer.
    cdef bint may_stop = pair == NULL and not plan.left and not plan.overflow
    memset(&row, 0, sizeof(row))
    row.source = source
    row.start[0] = part.ids.count
    if not engine.tokenize(engine.rules, work, text, plan.budget if may_stop else ALL, &part.ids, span_ids):
        return NO_MEMORY
    row.count[0] = part.ids.count - row.start[0]
    row.start[1] = part.ids.count
    if pair != NULL:
        if not engine.tokenize(engine.rules, work, pair, ALL, &part.ids, span_ids):
            return NO_MEMORY
        row.count[1] = part.ids.count - row.start[1]
    return cut_row(plan, part, &row)


cdef void tokenize_part(const Engine* engine, void* work, const Text* texts, const Text* pairs, Py_ssize_t start,
                        Py_ssize_t stop, const Plan* plan, bint spans, Part* part) noexcept nogil:
    cdef Py_ssize_t index
    part.outcome = DONE
    for index in range(start, stop):
        part.outcome = tokenize_row(
            engine, work, &texts[index], &pairs[index] if pairs != NULL else NULL, plan, index, spans, part
        )
        if part.outcome != DONE:
            part.failed_row = index
            return


cdef Text* view_texts(tuple texts, str name) except NULL:
    """Point at the texts' code points; the caller keeps the texts alive and frees the result."""
    cdef Py_ssize_t row, rows = len(texts)
    cdef Text* views = <Text*> malloc((rows + 1) * sizeof(Text))
    cdef object text
    if views == NULL:
        raise MemoryError
    for row in range(rows):
        text = texts[row]
        views[row].data = PyUnicode_DATA(text)
        views[row].kind = PyUnicode_KIND(text)
        views[row].ascii = PyUnicode_IS_ASCII(text)
        views[row].length = PyUnicode_GET_LENGTH(text)
    try:
        refuse_unfit(views, rows, name)
    except BaseException:
        free(views)
        raise
    return views


cdef object refuse_unfit(const Text* views, Py_ssize_t rows, str name):
    """Refuse lone surrogates, and texts whose positions do not fit an int32."""
    cdef Py_ssize_t row, position = -1
    for row in range(rows):
        if views[row].length > 0x7FFFFFFF:
            _checks_rows.text_length(name, row, views[row].length)
    row = 0
    with nogil:
        while row < rows:
            position = find_surrogate(&views[row])
            if position >= 0:
                break
            row += 1
    if position >= 0:
        _checks.raise_surrogate(name, row, position, char_at(&views[row], position))


cdef tuple text_items(object texts, str name):
    """The texts as a tuple; the slow check, which words the error, runs only where there is one."""
    cdef tuple items
    cdef object item
    if not isinstance(texts, (list, tuple)):
        return _checks.text_tuple(texts, name)
    items = tuple(texts)
    for item in items:
        if not PyUnicode_Check(item):
            return _checks.text_tuple(items, name)
    return items


cdef class Tokenizer:
    """Texts to rows of ids; a subclass brings the engine. See `reference/rows.py`."""

    def __dealloc__(self):
        # The subclass has freed its rules by now (its part of __dealloc__ runs first); work memory owns no rules.
        while self.kept_count:
            self.kept_count -= 1
            self.engine.free_work(self.kept_work[self.kept_count])
        free(self.single)
        free(self.pair)

    cdef object set_templates(self, object single, object pair):
        """Take the templates: tuples of `templates.TemplatePiece`."""
        self.single = copy_template(single)
        self.single_pieces = len(single)
        self.pair = copy_template(pair)
        self.pair_pieces = len(pair)

    def tokenize(self, texts, pairs=None, *, truncation=None, bint special_tokens=True, bint offsets=False,
                 int threads=1):
        """Tokenize texts, or pairs of texts."""
        cdef tuple items = text_items(texts, "texts")
        cdef tuple seconds = None
        cdef Tokenized out = Tokenized()
        cdef Plan plan
        cdef Text* views = NULL
        cdef Text* pair_views = NULL
        if pairs is not None:
            seconds = _checks.pair_tuple(items, pairs)
        if seconds is None:
            out.take_template(self.single, self.single_pieces, special_tokens)
        else:
            out.take_template(self.pair, self.pair_pieces, special_tokens)
        out.has_offsets = offsets
        plan = make_plan(truncation, out.specials, seconds is not None)
        _checks_rows.thread_count(threads)
        try:
            views = view_texts(items, "texts")
            if seconds is not None:
                pair_views = view_texts(seconds, "pairs")
            fill_rows(self, out, views, pair_views, len(items), &plan, threads)
        finally:
            free(views)
            free(pair_views)
        if out.part.outcome != DONE:
            raise_outcome(&out.part, &plan)
        out.set_size()
        return out


cdef void* take_work(Tokenizer tokenizer) except NULL:
    """Work memory for one call at a time: a kept one (the GIL guards the list), or a new one."""
    cdef void* work
    if tokenizer.kept_count:
        tokenizer.kept_count -= 1
        return tokenizer.kept_work[tokenizer.kept_count]
    work = tokenizer.engine.new_work()
    if work == NULL:
        raise MemoryError
    return work


cdef void give_work(Tokenizer tokenizer, void* work) noexcept:
    if tokenizer.kept_count < MOST_KEPT:
        tokenizer.kept_work[tokenizer.kept_count] = work
        tokenizer.kept_count += 1
    else:
        tokenizer.engine.free_work(work)


cdef object fill_rows(Tokenizer tokenizer, Tokenized out, const Text* views, const Text* pair_views, Py_ssize_t rows,
                      const Plan* plan, int threads):
    cdef Py_ssize_t row
    cdef size_t characters = 0
    cdef void* work
    if threads > 1:
        for row in range(rows):
            characters += views[row].length
        threads = <int> max(<size_t> 1, min(<size_t> threads, characters // THREAD_CHARACTERS))
    if threads > 1:
        fill_threaded(tokenizer, out, views, pair_views, rows, plan, threads)
        return
    work = take_work(tokenizer)
    with nogil:
        tokenize_part(&tokenizer.engine, work, views, pair_views, 0, rows, plan, out.has_offsets, &out.part)
    give_work(tokenizer, work)


cdef object fill_threaded(Tokenizer tokenizer, Tokenized out, const Text* views, const Text* pair_views,
                          Py_ssize_t rows, const Plan* plan, int threads):
    """Tokenize equal numbers of characters in each thread, and put the parts together."""
    cdef Part* parts = <Part*> calloc(threads, sizeof(Part))
    cdef Py_ssize_t[::1] bounds = np.zeros(threads + 1, dtype=np.intp)
    cdef int index
    if parts == NULL:
        raise MemoryError
    divide(views, rows, bounds)
    jobs = [
        Job.make(tokenizer, views, pair_views, bounds[index], bounds[index + 1], plan, out.has_offsets, &parts[index])
        for index in range(threads)
    ]
    workers = [threading.Thread(target=job.run, name="edgeonnx-tokenize") for job in jobs[1:]]
    started = []
    try:
        try:
            for worker in workers:
                worker.start()
                started.append(worker)
            jobs[0].run()
        finally:
            join_all(started)
        join_parts(parts, threads, &out.part)
    finally:
        for index in range(threads):
            free_part(&parts[index])
        free(parts)


cdef object join_all(list workers):
    """Wait for every thread, whatever happens meanwhile: they write into memory that is freed next."""
    interruption = None
    for worker in workers:
        while worker.is_alive():
            try:
                worker.join()
            except BaseException as error:  # an interrupt, or what a signal handler raised
                interruption = error
    if interruption is not None:
        raise interruption


cdef class Job:
    """One thread's share of a call. It borrows everything; the call outlives it."""

    cdef Tokenizer tokenizer
    cdef const Text* views
    cdef const Text* pair_views
    cdef Py_ssize_t start
    cdef Py_ssize_t stop
    cdef const Plan* plan
    cdef bint spans
    cdef Part* part

    @staticmethod
    cdef Job make(Tokenizer tokenizer, const Text* views, const Text* pair_views, Py_ssize_t start, Py_ssize_t stop,
                  const Plan* plan, bint spans, Part* part):
        cdef Job job = Job()
        job.tokenizer = tokenizer
        job.views = views
        job.pair_views = pair_views
        job.start = start
        job.stop = stop
        job.plan = plan
        job.spans = spans
        job.part = part
        part.outcome = NO_MEMORY  # unless the job gets to its end
        return job

    def run(self):
        cdef void* work = take_work(self.tokenizer)
        with nogil:
            tokenize_part(
                &self.tokenizer.engine, work, self.views, self.pair_views, self.start, self.stop, self.plan,
                self.spans, self.part,
            )
        give_work(self.tokenizer, work)


cdef void divide(const Text* views, Py_ssize_t rows, Py_ssize_t[::1] bounds) noexcept nogil:
    """Set bounds[i] to the first row of share i, so that shares have about the same number of characters."""
    cdef Py_ssize_t shares = bounds.shape[0] - 1, row, share = 1
    cdef size_t total = 0, before = 0
    for row in range(rows):
        total += views[row].length
    for row in range(rows):
        while share < shares and before >= share * (total // shares):
            bounds[share] = row
            share += 1
        before += views[row].length
    while share <= shares:
        bounds[share] = rows
        share += 1


cdef object join_parts(Part* parts, int count, Part* out):
    """Put the parts' rows together in order, or take over the first failure."""
    cdef size_t ids = 0, spans = 0, rows = 0, row
    cdef int index
    for index in range(count):
        if parts[index].outcome != DONE:
            out.outcome = parts[index].outcome
            out.failed_row = parts[index].failed_row
            out.failed_room = parts[index].failed_room
            return
        ids += parts[index].ids.count
        spans += parts[index].spans.count
        rows += parts[index].row_count
    out.ids.items = <int32_t*> malloc((ids + 1) * sizeof(int32_t))
    out.spans.items = <int32_t*> malloc((spans + 1) * sizeof(int32_t))
    out.rows = <Row*> malloc((rows + 1) * sizeof(Row))
    if out.ids.items == NULL or out.spans.items == NULL or out.rows == NULL:
        raise MemoryError
    out.ids.room = ids + 1
    out.spans.room = spans + 1
    out.row_room = rows + 1
    for index in range(count):
        for row in range(parts[index].row_count):
            out.rows[out.row_count] = parts[index].rows[row]
            out.rows[out.row_count].start[0] += out.ids.count
            out.rows[out.row_count].start[1] += out.ids.count
            out.row_count += 1
        append_ids(&out.ids, &parts[index].ids)
        append_ids(&out.spans, &parts[index].spans)
    out.outcome = DONE


cdef void append_ids(Ids* out, const Ids* more) noexcept nogil:
    if more.count:
        memcpy(out.items + out.count, more.items, more.count * sizeof(int32_t))
        out.count += more.count


cdef Piece* copy_template(object template) except NULL:
    cdef Py_ssize_t index
    cdef Piece* pieces = <Piece*> malloc((len(template) + 1) * sizeof(Piece))
    if pieces == NULL:
        raise MemoryError
    for index, piece in enumerate(template):
        pieces[index].source = piece.source
        pieces[index].type_id = piece.type_id
    return pieces


cdef Plan make_plan(object truncation, Py_ssize_t specials, bint pairs):
    cdef Plan plan
    memset(&plan, 0, sizeof(plan))
    plan.budget = ALL
    if truncation is not None:
        truncation.check_pairs(pairs=pairs)
        plan.budget = truncation.budget(specials)
        plan.strategy = STRATEGIES.index(truncation.strategy)
        plan.left = truncation.side == "left"
        plan.overflow = truncation.overflow
        plan.stride = truncation.stride
    return plan


cdef object raise_outcome(const Part* part, const Plan* plan):
    if part.outcome == TOO_SHORT:
        _checks_rows.raise_too_short(part.failed_row, STRATEGIES[plan.strategy], plan.budget)
    if part.outcome == STRIDE_TOO_LONG:
        _checks_rows.raise_stride(part.failed_row, plan.stride, part.failed_room)
    raise MemoryError(f"row {part.failed_row}: expected memory for its ids, found none")
