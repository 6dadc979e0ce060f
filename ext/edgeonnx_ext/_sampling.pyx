"""Compiled sampling of a decoder's next token. `reference/sampling.py` documents arguments and errors.

Each filter keeps the largest scores, so that none needs a sorted vocabulary: what may stay is gathered from the blocks
whose maximum reaches a bound (`_select.pxd`), and the exact edge is sought among these few. Dividing by the temperature
does not change an order, so that it happens in the exponent only.
"""

from libc.math cimport INFINITY, ceil, log
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

import numpy as np

from edgeonnx_ext import _checks_sampling

from edgeonnx_ext._select cimport (
    BINS, MAX_BLOCK, Edge, Item, block_count, block_maxima, block_size, find_edge, largest_items,
)
from edgeonnx_ext._vectors cimport exp_into, maximum_of, sum_of


cdef enum Problem:  # as in _checks_sampling
    NONE
    NOT_A_NUMBER
    INFINITE
    NOTHING_LEFT
    NO_MEMORY


cdef struct Rules:
    float penalty
    float temperature
    double top_p
    float min_p
    Py_ssize_t top_k


cdef struct Work:
    Py_ssize_t columns
    float* scores  # (columns,), a row's scores after the repetition penalty
    float* maxima  # (blocks,)
    double* sums  # (blocks,)
    Item* heap  # (the largest top_k,)
    float* values  # (columns,), of the tokens that are still in
    int32_t* ids
    float* weights  # exp((score - the largest) / temperature)
    double* bins
    Py_ssize_t count  # of the tokens that are still in


cdef void close_work(Work* work) noexcept nogil:
    free(work.scores)
    free(work.maxima)
    free(work.sums)
    free(work.heap)
    free(work.values)
    free(work.ids)
    free(work.weights)
    free(work.bins)


cdef bint open_work(Work* work, Py_ssize_t columns, Py_ssize_t most_k) noexcept nogil:
    """False if there is no memory; `close_work` either way."""
    cdef size_t size = <size_t> columns, blocks = <size_t> block_count(columns)
    work.columns = columns
    work.scores = <float*> malloc(size * sizeof(float))
    work.maxima = <float*> malloc(blocks * sizeof(float))
    work.sums = <double*> malloc(blocks * sizeof(double))
    work.heap = <Item*> malloc((<size_t> most_k + 1) * sizeof(Item))
    work.values = <float*> malloc(size * sizeof(float))
    work.ids = <int32_t*> malloc(size * sizeof(int32_t))
    work.weights = <float*> malloc(size * sizeof(float))
    work.bins = <double*> malloc(BINS * sizeof(double))
    return not (
        work.scores == NULL or work.maxima == NULL or work.sums == NULL or work.heap == NULL
        or work.values == NULL or work.ids == NULL or work.weights == NULL or work.bins == NULL
    )


cdef const float* penalized(
    const float* logits, float penalty, const int64_t* history, Py_ssize_t length, Work* work
) noexcept nogil:
    """The logits, or a copy in which the scores of the history's tokens are penalized once."""
    cdef Py_ssize_t place
    cdef int64_t token
    cdef float score
    if penalty == 1.0 or length == 0:
        return logits
    memcpy(work.scores, logits, <size_t> work.columns * sizeof(float))
    for place in range(length):
        token = history[place]
        if token < work.columns:  # an embedding table may have more rows than the model has scores
            score = logits[token]
            work.scores[token] = score * penalty if score < 0.0 else score / penalty
    return work.scores


cdef void gather(const float* scores, float least, Work* work) noexcept nogil:
    """List the scores from `least` upward, in the order of their ids."""
    cdef Py_ssize_t block, column, start, count = 0
    for block in range(block_count(work.columns)):
        if work.maxima[block] >= least:
            start = block * MAX_BLOCK
            for column in range(start, start + block_size(work.columns, block)):
                # Written always and kept if it reaches: a branch would be guessed wrong too often.
                work.values[count] = scores[column]
                work.ids[count] = <int32_t> column
                count += scores[column] >= least
    work.count = count


cdef inline void keep(Work* work, Py_ssize_t place, Py_ssize_t kept) noexcept nogil:
    work.values[kept] = work.values[place]
    work.ids[kept] = work.ids[place]
    work.weights[kept] = work.weights[place]


cdef void keep_top_p(double target, Work* work) noexcept nogil:
    """Keep the fewest of the largest weights that reach `target` together; of equal ones the higher ids stay."""
    cdef Edge edge = find_edge(work.values, work.weights, work.count, target, work.bins)
    cdef Py_ssize_t place, equal = 0, kept = 0
    cdef double wanted
    cdef float weight = 0.0
    for place in range(work.count):
        if work.values[place] == edge.value:
            equal += 1
            weight = work.weights[place]
    wanted = max(ceil((target - edge.above) / weight), 1.0) if weight > 0.0 else <double> equal
    if wanted < <double> equal:
        equal -= <Py_ssize_t> wanted  # how many of them go
    else:
        equal = 0
    for place in range(work.count):
        if work.values[place] == edge.value and equal > 0:
            equal -= 1
        elif work.values[place] >= edge.value:
            keep(work, place, kept)
            kept += 1
    work.count = kept


cdef void keep_min_p(float least, Work* work) noexcept nogil:
    """Keep the weights from `least` upward; that of the largest score is 1."""
    cdef Py_ssize_t place, kept = 0
    for place in range(work.count):
        if work.weights[place] >= least:
            keep(work, place, kept)
            kept += 1
    work.count = kept


cdef float lowered(double bound) noexcept nogil:
    """A little less than `bound`, by more than float32 rounds, so that the exact filters decide near it."""
    return <float> (bound - 1e-5 * max(1.0, bound if bound > 0.0 else -bound))


cdef void list_kept(const float* scores, float top, const Rules* rules, Work* work) noexcept nogil:
    """List the ids and the weights of the tokens that the filters keep."""
    cdef float scale = <float> 1.0 / rules.temperature, least = -INFINITY
    cdef double total = 0.0
    cdef Py_ssize_t columns = work.columns
    if 0 < rules.top_k < columns:
        largest_items(scores, columns, work.maxima, work.heap, rules.top_k)
        least = work.heap[0].value
    elif rules.top_p < 1.0:
        # Less than (1 - top_p) of the mass stands below this bound, however many tokens do: none of them stays.
        exp_into(scores, columns, top, scale, work.weights)
        total = sum_of(work.weights, columns)
        least = lowered(top + rules.temperature * log((1.0 - rules.top_p) * total / columns))
    elif rules.min_p > 0.0:
        least = lowered(top + rules.temperature * log(rules.min_p))
    gather(scores, least, work)
    exp_into(work.values, work.count, top, scale, work.weights)
    if rules.top_p < 1.0:
        if total == 0.0:
            total = sum_of(work.weights, work.count)
        keep_top_p(max(rules.top_p * total, 1e-300), work)
    if rules.min_p > 0.0:
        keep_min_p(rules.min_p, work)


cdef double sum_blocks(Work* work) noexcept nogil:
    """Write the sum of each block of weights; return the sum of all."""
    cdef Py_ssize_t block
    cdef double total = 0.0
    for block in range(block_count(work.count)):
        work.sums[block] = sum_of(work.weights + block * MAX_BLOCK, block_size(work.count, block))
        total += work.sums[block]
    return total


cdef Py_ssize_t draw(double uniform, Work* work) noexcept nogil:
    """The first place at which the sum of the weights exceeds `uniform` times the sum of all."""
    cdef double target = uniform * sum_blocks(work), total = 0.0
    cdef Py_ssize_t block = 0, last = block_count(work.count) - 1, place, chosen = 0
    while block < last and total + work.sums[block] <= target:
        total += work.sums[block]
        block += 1
    for place in range(block * MAX_BLOCK, block * MAX_BLOCK + block_size(work.count, block)):
        total += work.weights[place]
        if work.weights[place] > 0.0:  # the last one that can be drawn, if rounding leaves the sum short
            chosen = place
            if total > target:
                break
    return chosen


cdef Problem problem_of(float top, int has_nan) noexcept nogil:
    if has_nan:
        return NOT_A_NUMBER
    return INFINITE if top == INFINITY else NOTHING_LEFT if top == -INFINITY else NONE


cdef Problem prepare_row(const float* scores, const Rules* rules, Work* work) noexcept nogil:
    """List what the filters keep: one token if the temperature is 0."""
    cdef int has_nan = False
    cdef float top = block_maxima(scores, work.columns, work.maxima, &has_nan)
    cdef Problem problem = problem_of(top, has_nan)
    if problem == NONE:
        if rules.temperature == 0.0:
            gather(scores, top, work)
            work.count = 1
            work.weights[0] = 1.0
        else:
            list_kept(scores, top, rules, work)
    return problem


cdef float log_probability(const float* logits, int32_t token, Work* work) noexcept nogil:
    cdef int ignored = False
    cdef float top = maximum_of(logits, work.columns, &ignored)
    exp_into(logits, work.columns, top, 1.0, work.weights)
    return <float> ((<double> logits[token] - top) - log(sum_of(work.weights, work.columns)))


cdef class Call:
    """A checked call: its plan as views, and the work memory."""
    cdef const double[:, ::1] numbers
    cdef const int64_t[::1] top_k
    cdef const int64_t[::1] starts
    cdef const int64_t[::1] history
    cdef const float[:, ::1] logits
    cdef Work work

    def __cinit__(self, logits, plan):
        cdef Py_ssize_t most_k = 0, row
        self.numbers, self.top_k, self.starts = plan.numbers, plan.top_k, plan.starts
        # One place more, so that a row's history has an address even where it is empty.
        self.history = np.append(plan.history, 0)
        self.logits = logits
        for row in range(self.top_k.shape[0]):
            if self.top_k[row] < self.logits.shape[1]:
                most_k = max(most_k, self.top_k[row])
        if not open_work(&self.work, self.logits.shape[1], most_k):
            raise MemoryError

    def __dealloc__(self):
        close_work(&self.work)

    cdef Problem prepare(self, Py_ssize_t row) noexcept nogil:
        cdef Rules rules
        cdef const float* scores
        rules.penalty = <float> self.numbers[row, 0]
        rules.temperature = <float> self.numbers[row, 1]
        rules.top_p = self.numbers[row, 2]
        rules.min_p = <float> self.numbers[row, 3]
        rules.top_k = self.top_k[row]
        scores = penalized(
            &self.logits[row, 0],
            rules.penalty,
            &self.history[self.starts[row]],
            self.starts[row + 1] - self.starts[row],
            &self.work,
        )
        return prepare_row(scores, &rules, &self.work)


def sample_into(logits, uniforms, parameters, ids, history=None, logprobs=None):
    """Draw one token a row."""
    plan = _checks_sampling.sample_arguments(logits, uniforms, parameters, ids, history, logprobs)
    if logits.shape[0] == 0:
        return
    cdef Call call = Call(logits, plan)
    # Results stand here until all rows are done: an error in the last row leaves the caller's buffers alone.
    cdef int64_t[::1] found = np.empty(len(ids), dtype=np.int64)
    cdef float[::1] found_logprobs = np.empty(len(ids), dtype=np.float32)
    cdef const double[::1] uniforms_view = uniforms
    cdef bint wants_logprobs = logprobs is not None
    cdef Py_ssize_t row = 0, rows = found.shape[0]
    cdef Problem problem = NONE
    with nogil:
        while row < rows:
            problem = call.prepare(row)
            if problem != NONE:
                break
            found[row] = call.work.ids[draw(uniforms_view[row], &call.work)]
            if wants_logprobs:
                found_logprobs[row] = log_probability(&call.logits[row, 0], <int32_t> found[row], &call.work)
            row += 1
    if problem != NONE:
        _checks_sampling.raise_row(row, problem)
    ids[...] = found
    if wants_logprobs:
        logprobs[...] = found_logprobs


def probabilities_into(logits, parameters, probabilities, history=None):
    """Write the probabilities with which `sample_into` draws."""
    plan = _checks_sampling.probabilities_arguments(logits, parameters, probabilities, history)
    if logits.shape[0] == 0:
        return
    cdef Call call = Call(logits, plan)
    cdef float[:, ::1] out = probabilities
    cdef Py_ssize_t row = 0, place
    cdef Problem problem = NONE
    cdef double total
    with nogil:
        while row < out.shape[0] and problem == NONE:
            problem = call.prepare(row)
            row += 1
        if problem == NONE:
            for row in range(out.shape[0]):
                call.prepare(row)
                total = sum_blocks(&call.work)
                memset(&out[row, 0], 0, <size_t> out.shape[1] * sizeof(float))
                for place in range(call.work.count):
                    out[row, call.work.ids[place]] = <float> (call.work.weights[place] / total)
    if problem != NONE:
        _checks_sampling.raise_row(row - 1, problem)
