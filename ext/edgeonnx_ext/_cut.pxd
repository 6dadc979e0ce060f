# Cutting the rows of a call: `edgeonnx_ext/layout.py` documents the arithmetic.

from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from edgeonnx_ext._arrays cimport Ids, grown


cdef enum Strategy:
    LONGEST_FIRST
    ONLY_FIRST
    ONLY_SECOND


cdef enum Outcome:
    DONE
    NO_MEMORY
    TOO_SHORT
    STRIDE_TOO_LONG


# How the rows of one call are cut.
cdef struct Plan:
    size_t budget  # tokens of texts in a row; ALL without truncation
    int strategy
    bint left
    bint overflow
    size_t stride


cdef struct Row:
    size_t[2] start  # of the first and of the second text's ids
    size_t[2] count
    int64_t source  # which text of the call


# The rows of some of a call's texts.
cdef struct Part:
    Ids ids
    Ids spans
    Row* rows
    size_t row_count
    size_t row_room
    Outcome outcome
    int64_t failed_row
    size_t failed_room


cdef inline bint push_row(Part* part, const Row* row) noexcept nogil:
    cdef void* moved
    if part.row_count == part.row_room:
        moved = grown(part.rows, &part.row_room, part.row_count + 1, sizeof(Row))
        if moved == NULL:
            return False
        part.rows = <Row*> moved
    part.rows[part.row_count] = row[0]
    part.row_count += 1
    return True


cdef inline void free_part(Part* part) noexcept nogil:
    free(part.ids.items)
    free(part.spans.items)
    free(part.rows)
    memset(part, 0, sizeof(Part))


cdef inline void longest_first(size_t* kept, size_t budget) noexcept nogil:
    cdef bint swap = kept[0] > kept[1]
    cdef size_t shorter = min(kept[0], kept[1]), longer
    longer = max(shorter, budget - shorter) if shorter <= budget else shorter
    if shorter + longer > budget:
        shorter = budget // 2
        longer = budget - shorter
    kept[0] = longer if swap else shorter
    kept[1] = shorter if swap else longer


cdef inline bint cut_lengths(const Plan* plan, size_t* kept) noexcept nogil:
    """Lower the two lengths to what stays; False if the one text that may be cut is too short for it."""
    cdef size_t cut
    cdef int target = 1 if plan.strategy == ONLY_SECOND else 0
    if kept[0] + kept[1] <= plan.budget:
        return True
    if plan.budget == 0:
        kept[0] = kept[1] = 0
    elif plan.strategy == LONGEST_FIRST:
        longest_first(kept, plan.budget)
    else:
        cut = kept[0] + kept[1] - plan.budget
        if kept[target] <= cut:
            return False
        kept[target] -= cut
    return True


cdef inline bint push_windows(const Plan* plan, Part* part, Row row, const size_t* kept, int target) noexcept nogil:
    """Append the row of the kept windows, and those of the further windows over text `target`; False if no memory."""
    cdef size_t length = row.count[target], start = row.start[target], shift = 0, other
    other = 1 - target
    if plan.left:
        row.start[other] += row.count[other] - kept[other]
    row.count[other] = kept[other]
    while True:
        row.start[target] = start + shift
        row.count[target] = min(kept[target], length - shift)
        if plan.left:
            row.start[target] = start + (length - shift - row.count[target])
        if not push_row(part, &row):
            return False
        if not plan.overflow or shift + row.count[target] >= length:
            return True
        shift += kept[target] - plan.stride


cdef inline Outcome cut_row(const Plan* plan, Part* part, const Row* row) noexcept nogil:
    cdef size_t[2] kept
    cdef int target, text
    kept[0] = row.count[0]
    kept[1] = row.count[1]
    if not cut_lengths(plan, kept):
        return TOO_SHORT
    target = 1 if kept[1] < row.count[1] and kept[0] == row.count[0] else 0
    if plan.overflow:
        for text in range(2):
            if kept[text] < row.count[text] and kept[text] <= plan.stride:
                part.failed_room = kept[text]
                return STRIDE_TOO_LONG
    return DONE if push_windows(plan, part, row[0], kept, target) else NO_MEMORY
