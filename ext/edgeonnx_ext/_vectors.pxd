# Loops over whole rows that compilers do not turn into vector instructions by themselves, in the vector types of GCC
# and Clang: the maximum, and exp() as softmax and sampling need it.


cdef extern from *:
    """
    #include <math.h>
    #include <stdint.h>
    #include <string.h>

    typedef float EdgeFloats __attribute__((vector_size(16)));
    typedef int32_t EdgeFlags __attribute__((vector_size(16)));
    typedef uint32_t EdgeWords __attribute__((vector_size(16)));

    /* `yes` where the flag is set (all bits of it), `no` elsewhere. */
    static inline EdgeFloats edge_select(EdgeFlags flags, EdgeFloats yes, EdgeFloats no)
    {
        return (EdgeFloats)((flags & (EdgeFlags)yes) | (~flags & (EdgeFlags)no));
    }

    /* The largest of the numbers that are no NaN, -infinity if there is none; sets *has_nan if there is a NaN. */
    static inline float maximum_of(const float *x, Py_ssize_t count, int *has_nan)
    {
        EdgeFloats first = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, second = first, a, b;
        EdgeFlags nans = {0, 0, 0, 0};
        float top = -INFINITY;
        Py_ssize_t index;
        for (index = 0; index < count / 8; index++) {
            memcpy(&a, x + 8 * index, sizeof a);
            memcpy(&b, x + 8 * index + 4, sizeof b);
            nans |= (a != a) | (b != b);
            first = edge_select(a > first, a, first);
            second = edge_select(b > second, b, second);
        }
        first = edge_select(first > second, first, second);
        for (index = 0; index < 4; index++) {
            top = first[index] > top ? first[index] : top;
            *has_nan |= nans[index] != 0;
        }
        for (index = count - count % 8; index < count; index++) {
            top = x[index] > top ? x[index] : top;
            *has_nan |= x[index] != x[index];
        }
        return top;
    }

    /* e**x for x <= 0, relative error below 1e-7; exactly 0 below -87, where float32 would become subnormal.
       x = n ln 2 + r with |r| <= ln(2) / 2, and e**r is its Taylor series up to r**7 (the rest is below
       (ln(2) / 2)**8 / 8! = 5.2e-9). Adding 1.5 * 2**23 rounds to an integer and leaves it in the lowest bits; ln 2 is
       taken in two parts, the first of few bits, so that n times it is exact (Cody and Waite). */
    static inline EdgeFloats edge_exp(EdgeFloats x)
    {
        const EdgeFloats least = {-87.0f, -87.0f, -87.0f, -87.0f};
        const float round_to_integer = 12582912.0f;
        EdgeFlags below = x < least;
        EdgeFloats kept = edge_select(below, least, x);
        EdgeFloats shifted = kept * 1.44269504f + round_to_integer;
        EdgeFloats n = shifted - round_to_integer;
        EdgeFloats r = (kept - n * 0.693359375f) + n * 2.12194440e-4f;
        EdgeFloats series = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
        series = series * r + 1.0f / 120.0f;
        series = series * r + 1.0f / 24.0f;
        series = series * r + 1.0f / 6.0f;
        series = series * r + 0.5f;
        series = series * r + 1.0f;
        series = series * r + 1.0f;
        series *= (EdgeFloats)(((EdgeWords)shifted + 127u) << 23);
        return (EdgeFloats)(~below & (EdgeFlags)series);
    }

    /* Write exp((x - maximum) * scale) of `count` numbers that are at most `maximum`, which is finite. `weights` may be
       `x`. */
    static inline void exp_into(const float *x, Py_ssize_t count, float maximum, float scale, float *weights)
    {
        EdgeFloats values;
        Py_ssize_t index, rest = count % 4;
        for (index = 0; index < count - rest; index += 4) {
            memcpy(&values, x + index, sizeof values);
            values = edge_exp((values - maximum) * scale);
            memcpy(weights + index, &values, sizeof values);
        }
        if (rest) {
            values = (EdgeFloats){maximum, maximum, maximum, maximum};
            memcpy(&values, x + index, (size_t)rest * sizeof(float));
            values = edge_exp((values - maximum) * scale);
            memcpy(weights + index, &values, (size_t)rest * sizeof(float));
        }
    }

    /* The sum of the numbers: eight sums side by side, which one alone would chain. */
    static inline double sum_of(const float *x, Py_ssize_t count)
    {
        double sums[8] = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
        Py_ssize_t index, lane;
        for (index = 0; index < count / 8; index++)
            for (lane = 0; lane < 8; lane++)
                sums[lane] += x[8 * index + lane];
        for (index = count - count % 8; index < count; index++)
            sums[index % 8] += x[index];
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    """
    float maximum_of(const float* x, Py_ssize_t count, int* has_nan) noexcept nogil
    void exp_into(const float* x, Py_ssize_t count, float maximum, float scale, float* weights) noexcept nogil
    double sum_of(const float* x, Py_ssize_t count) noexcept nogil
