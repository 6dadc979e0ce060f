"""Compiled image preprocessing, with the GIL released. `reference/images.py` documents arguments and errors.

One image streams through two passes, row by row, so that only the rows that one output row needs are held:
- horizontal first: each source row is resampled once, into a ring of as many rows as the vertical filter reaches;
- vertical first: the source rows are added up, then that one row is resampled.
Either way the last row is bytes, and a table turns each byte into the float of its channel.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, malloc

from edgeonnx_ext import _checks_images

cdef enum:
    PRECISION_BITS = 22  # as in _resampling.py
    HALF = 1 << 21
    CHANNELS = 3


cdef struct Axis:
    # One axis of a plan, as in _resampling.Axis.
    const int32_t* first
    const int32_t* weights
    Py_ssize_t taps
    Py_ssize_t count
    Py_ssize_t before
    Py_ssize_t length
    Py_ssize_t start  # the first source pixel that is read
    Py_ssize_t stop  # one beyond the last
    bint copies


cdef struct Job:
    # One image, and where it goes.
    const uint8_t* image
    Py_ssize_t stride  # bytes from one source row to the next
    Axis rows
    Axis columns
    bint vertical_first
    const float* values
    float* out


cdef struct Scratch:
    # Sizes for the largest job; the pointers are parts of one block.
    size_t wide  # bytes of a row, before or after the horizontal pass
    size_t ring_rows
    int32_t* sums
    uint8_t* line
    uint8_t* ring


cdef inline uint8_t clipped(int32_t total) noexcept nogil:
    total >>= PRECISION_BITS
    return <uint8_t> (0 if total < 0 else 255 if total > 255 else total)


cdef void resample_line(const Axis* axis, const uint8_t* source, Py_ssize_t origin, uint8_t* line) noexcept nogil:
    """Resample one row; `source` points at its pixel `origin`."""
    cdef Py_ssize_t column
    cdef Py_ssize_t tap, taps = axis.taps
    cdef int32_t weight, red, green, blue
    cdef const uint8_t* pixel
    cdef const int32_t* weights = axis.weights
    for column in range(axis.count):
        pixel = source + (axis.first[column] - origin) * CHANNELS
        red = green = blue = HALF
        for tap in range(taps):
            weight = weights[tap]
            red += pixel[0] * weight
            green += pixel[1] * weight
            blue += pixel[2] * weight
            pixel += CHANNELS
        weights += taps
        line[0] = clipped(red)
        line[1] = clipped(green)
        line[2] = clipped(blue)
        line += CHANNELS


cdef inline void add_weighted(const uint8_t* source, int32_t weight, Py_ssize_t size, int32_t* sums) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(size):
        sums[index] += source[index] * weight


cdef inline void clip_line(const int32_t* sums, Py_ssize_t size, uint8_t* line) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(size):
        line[index] = clipped(sums[index])


cdef void emit(const Job* job, Py_ssize_t row, const uint8_t* line) noexcept nogil:
    """Write one finished row of bytes into the three planes of the output."""
    cdef Py_ssize_t plane = job.rows.length * job.columns.length
    cdef float* out = job.out + (job.rows.before + row) * job.columns.length + job.columns.before
    cdef const float* values = job.values
    cdef Py_ssize_t column
    for column in range(job.columns.count):
        out[column] = values[line[CHANNELS * column]]
        out[column + plane] = values[256 + line[CHANNELS * column + 1]]
        out[column + 2 * plane] = values[512 + line[CHANNELS * column + 2]]


cdef void fill_padding(const Job* job) noexcept nogil:
    """Write black everywhere if there is padding: simpler than its four edges, and rare."""
    cdef Py_ssize_t plane = job.rows.length * job.columns.length
    cdef Py_ssize_t channel, index
    if job.rows.count == job.rows.length and job.columns.count == job.columns.length:
        return
    for channel in range(CHANNELS):
        for index in range(plane):
            job.out[channel * plane + index] = job.values[256 * channel]


cdef void vertical_first(const Job* job, const Scratch* scratch) noexcept nogil:
    cdef const Axis* rows = &job.rows
    cdef const Axis* columns = &job.columns
    cdef Py_ssize_t size = (columns.stop - columns.start) * CHANNELS
    cdef const uint8_t* source
    cdef Py_ssize_t row, index, tap
    for row in range(rows.count):
        source = job.image + rows.first[row] * job.stride + columns.start * CHANNELS
        for index in range(size):
            scratch.sums[index] = HALF
        for tap in range(rows.taps):
            add_weighted(source + tap * job.stride, rows.weights[row * rows.taps + tap], size, scratch.sums)
        clip_line(scratch.sums, size, scratch.line)
        if columns.copies:
            emit(job, row, scratch.line)
        else:
            resample_line(columns, scratch.line, columns.start, scratch.ring)
            emit(job, row, scratch.ring)


cdef inline const uint8_t* finished_row(const Job* job, const Scratch* scratch, Py_ssize_t row) noexcept nogil:
    """Return a source row after the horizontal pass: in the ring, or in the image if its columns are copied."""
    if job.columns.copies:
        return job.image + row * job.stride + job.columns.start * CHANNELS
    return scratch.ring + (row % job.rows.taps) * scratch.wide


cdef void horizontal_first(const Job* job, const Scratch* scratch) noexcept nogil:
    cdef const Axis* rows = &job.rows
    cdef Py_ssize_t size = job.columns.count * CHANNELS
    cdef Py_ssize_t row, index, tap, known = 0
    for row in range(rows.count):
        known = max(known, rows.first[row])
        while known < rows.first[row] + rows.taps:
            if not job.columns.copies:
                resample_line(&job.columns, job.image + known * job.stride, 0,
                              scratch.ring + (known % rows.taps) * scratch.wide)
            known += 1
        if rows.copies:
            emit(job, row, finished_row(job, scratch, rows.first[row]))
            continue
        for index in range(size):
            scratch.sums[index] = HALF
        for tap in range(rows.taps):
            add_weighted(finished_row(job, scratch, rows.first[row] + tap), rows.weights[row * rows.taps + tap],
                         size, scratch.sums)
        clip_line(scratch.sums, size, scratch.line)
        emit(job, row, scratch.line)


cdef Axis read_axis(axis) except *:
    """Return the pointers of an axis, which the plan keeps alive."""
    cdef const int32_t[::1] first = axis.first
    cdef const int32_t[:, ::1] weights = axis.weights
    cdef Py_ssize_t last = first.shape[0] - 1
    cdef Axis result
    result.first = &first[0]
    result.weights = &weights[0, 0]
    result.taps = weights.shape[1]
    result.count = first.shape[0]
    result.before = axis.before
    result.length = axis.length
    result.start = first[0]
    result.stop = first[last] + result.taps
    result.copies = axis.copies
    return result


cdef Job read_job(image, out, plan, const float[:, ::1] values) except *:
    cdef const uint8_t[:, :, ::1] image_view = image
    cdef float[:, :, ::1] out_view = out
    cdef Job job
    job.image = &image_view[0, 0, 0]
    job.stride = image_view.shape[1] * CHANNELS
    job.rows = read_axis(plan.rows)
    job.columns = read_axis(plan.columns)
    job.vertical_first = plan.vertical_first
    job.values = &values[0, 0]
    job.out = &out_view[0, 0, 0]
    return job


cdef void enlarge(Scratch* scratch, const Job* job) noexcept nogil:
    """Make the sizes large enough for a job."""
    cdef Py_ssize_t pixels = max(job.columns.count, job.columns.stop - job.columns.start)
    cdef Py_ssize_t rows = 1 if job.vertical_first else job.rows.taps
    scratch.wide = max(scratch.wide, <size_t> (pixels * CHANNELS))
    scratch.ring_rows = max(scratch.ring_rows, <size_t> rows)


cdef void* allocate(Scratch* scratch) except NULL:
    cdef size_t sums = scratch.wide * sizeof(int32_t)
    cdef char* block = <char*> malloc(sums + scratch.wide * (1 + scratch.ring_rows))
    if block == NULL:
        raise MemoryError
    scratch.sums = <int32_t*> block
    scratch.line = <uint8_t*> (block + sums)
    scratch.ring = scratch.line + scratch.wide
    return block


cdef void run(const Job* job, const Scratch* scratch) noexcept nogil:
    fill_padding(job)
    if job.vertical_first:
        vertical_first(job, scratch)
    else:
        horizontal_first(job, scratch)


cdef void run_all(images, out, plans, values) except *:
    """Do all jobs; the memory is there before the first output is written."""
    cdef Scratch scratch
    cdef Py_ssize_t index, count = len(plans)
    cdef void* block
    cdef Job* jobs = <Job*> malloc((count + 1) * sizeof(Job))
    if jobs == NULL:
        raise MemoryError
    try:
        scratch.wide = scratch.ring_rows = 1
        for index in range(count):
            jobs[index] = read_job(images[index], out[index], plans[index], values)
            enlarge(&scratch, &jobs[index])
        block = allocate(&scratch)
        with nogil:
            for index in range(count):
                run(&jobs[index], &scratch)
        free(block)
    finally:
        free(jobs)


def preprocess_into(image, out, preprocessing):
    """Resize, crop, rescale and normalize one image into `out`, channels first."""
    plan = _checks_images.single(image, out, preprocessing)
    run_all((image,), (out,), (plan,), preprocessing.values)


def preprocess_batch_into(images, out, preprocessing):
    """Write each image, as `preprocess_into`, into its row of `out`."""
    checked = _checks_images.image_tuple(images)
    run_all(checked, out, _checks_images.batch(checked, out, preprocessing), preprocessing.values)
