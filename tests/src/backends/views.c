#include "views.h"
#include <stdio.h>

const mt_dtype mtt_floats[4] = {MT_F32, MT_F64, MT_BF16, MT_F16};
const int64_t mtt_sizes[9] = {1, 2, 3, 7, 17, 63, 64, 65, 1000};

static int64_t offset_of(const mti_view *v, int64_t i)
{
    int64_t offset = 0;
    for (int d = v->rank - 1; d >= 0; d--) {
        offset += i % v->shape[d] * v->stride[d];
        i /= v->shape[d];
    }
    return offset;
}

/* Takes significand and exponent apart and joins them with ldexp. */
static double from_bits(uint16_t h, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1,
        e = (h >> fraction_bits) & ((1 << exponent_bits) - 1);
    int fraction = h & ((1 << fraction_bits) - 1);
    double sign = h >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
    if (e == (1 << exponent_bits) - 1) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (e == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), e - bias - fraction_bits);
}

static uint16_t to_bits(double x, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1, e;
    uint16_t sign = (uint16_t)(!!signbit(x) << (exponent_bits + fraction_bits));
    x = fabs(x);
    if (isnan(x)) return (uint16_t)(sign | top << fraction_bits | 1 << (fraction_bits - 1));
    frexp(x, &e);
    e = x == 0 || e - 1 < 1 - bias ? 1 - bias : e - 1;
    /* in units of the last place; a carry increments the exponent */
    double units = isinf(x) ? INFINITY : nearbyint(ldexp(x, fraction_bits - e));
    double all = units + (double)(e - 1 + bias) * (1 << fraction_bits);
    double most = (double)(top << fraction_bits);
    return (uint16_t)(sign | (uint16_t)(all > most ? most : all));
}

/* e4m3: exponents go one further, with NaN as the last number and no infinity. */
static double from_e4m3(uint8_t h)
{
    if ((h & 0x7f) == 0x7f) return (double)NAN;
    if ((h & 0x78) != 0x78) return from_bits(h, 4, 3);
    return (h & 0x80 ? -256.0 : 256.0) * (1 + (h & 7) / 8.0);
}

static uint8_t to_e4m3(double x)
{
    uint8_t sign = (uint8_t)(!!signbit(x) << 7);
    if (isnan(x)) return sign | 0x7f;
    if (fabs(x) < 256) return (uint8_t)to_bits(x, 4, 3);
    double steps = nearbyint((fabs(x) - 256) / 32); /* of the numbers with the exponent of 256 */
    return (uint8_t)(sign | (0x78 + (int)(steps < 6 ? steps : 6)));
}

double mtt_get(const mti_view *v, int64_t i)
{
    int64_t o = offset_of(v, i);
    switch (v->dtype) {
    case MT_F32: return ((float *)v->data)[o];
    case MT_F64: return ((double *)v->data)[o];
    case MT_BF16: return from_bits(((uint16_t *)v->data)[o], 8, 7);
    case MT_F16: return from_bits(((uint16_t *)v->data)[o], 5, 10);
    case MT_I64: return (double)((int64_t *)v->data)[o];
    case MT_F8_E4M3: return from_e4m3(((uint8_t *)v->data)[o]);
    case MT_F8_E5M2: return from_bits(((uint8_t *)v->data)[o], 5, 2);
    case MT_I32: return ((int32_t *)v->data)[o];
    case MT_I16: return ((int16_t *)v->data)[o];
    case MT_U16: return ((uint16_t *)v->data)[o];
    case MT_I8: return ((int8_t *)v->data)[o];
    default: return ((uint8_t *)v->data)[o];
    }
}

void mtt_set(const mti_view *v, int64_t i, double value)
{
    int64_t o = offset_of(v, i);
    switch (v->dtype) {
    case MT_F32: ((float *)v->data)[o] = (float)value; break;
    case MT_F64: ((double *)v->data)[o] = value; break;
    case MT_BF16: ((uint16_t *)v->data)[o] = to_bits((float)value, 8, 7); break;
    case MT_F16: ((uint16_t *)v->data)[o] = to_bits((float)value, 5, 10); break;
    case MT_I64: ((int64_t *)v->data)[o] = (int64_t)value; break;
    case MT_F8_E4M3: ((uint8_t *)v->data)[o] = to_e4m3((double)(float)value); break;
    case MT_F8_E5M2: ((uint8_t *)v->data)[o] = (uint8_t)to_bits((float)value, 5, 2); break;
    case MT_I32: ((int32_t *)v->data)[o] = (int32_t)value; break;
    case MT_I16: ((int16_t *)v->data)[o] = (int16_t)value; break;
    case MT_U16: ((uint16_t *)v->data)[o] = (uint16_t)value; break;
    case MT_I8: ((int8_t *)v->data)[o] = (int8_t)value; break;
    default: ((uint8_t *)v->data)[o] = (uint8_t)value; break;
    }
}

void mtt_fill(const mti_view *v, uint64_t seed, double lo, double hi)
{
    int64_t n = mti_view_count(v);
    for (int64_t i = 0; i < n; i++) {
        uint64_t s = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u + seed * 0xBF58476D1CE4E5B9u;
        s = (s ^ (s >> 29)) * 0xBF58476D1CE4E5B9u;
        s ^= s >> 32;
        mtt_set(v, i, lo + (hi - lo) * (double)(s >> 11) * 0x1p-53);
    }
}

double mtt_epsilon(mt_dtype dtype)
{
    return dtype == MT_F32    ? 0x1p-23
           : dtype == MT_F64  ? 0x1p-52
           : dtype == MT_BF16 ? 0x1p-7
                              : 0x1p-10;
}

void mtt_close(double got, double want, double tolerance, const char *what, int64_t i)
{
    if (isnan(got) && isnan(want)) return;
    if (got == want) return;
    double scale = fabs(want) > 1 ? fabs(want) : 1;
    if (fabs(got - want) <= tolerance * scale) return;
    fail_msg("%s: element %lld is %.17g, want %.17g (tolerance %g)", what, (long long)i, got, want,
             tolerance);
}

void mtt_same(const mti_view *a, const mti_view *b, const char *what)
{
    int64_t n = mti_view_count(a);
    size_t size = mt_dtype_size(a->dtype);
    assert_int_equal(n, mti_view_count(b));
    for (int64_t i = 0; i < n; i++)
        if (memcmp((char *)a->data + (size_t)offset_of(a, i) * size,
                   (char *)b->data + (size_t)offset_of(b, i) * size, size))
            fail_msg("%s: element %lld differs: %.17g and %.17g", what, (long long)i, mtt_get(a, i),
                     mtt_get(b, i));
}
