/* The scalar maths that promises the CPU's bits (backends/quantize_codes.h), with a `float` that
 * computes as a GPU does: whatever NaN comes out of an operation has the bits 0x7fffffff, and not
 * those of its operands, as on x86. So a NaN that is stored must not come out of one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

/* As NVIDIA's "Floating Point and IEEE 754" has it. */
struct gpu_float {
    float value;
    gpu_float() = default;
    gpu_float(float x) : value(x) {}
    explicit gpu_float(double x) : gpu_float(of((float)x)) {}
    explicit gpu_float(int n) : value((float)n) {}
    static gpu_float of(float x)
    {
        const uint32_t nan = 0x7fffffffu;
        if (isnan(x)) memcpy(&x, &nan, sizeof x);
        return gpu_float(x);
    }
    explicit operator double() const { return value; }
    explicit operator int() const { return (int)value; }
};
static inline gpu_float operator+(gpu_float a, gpu_float b)
{
    return gpu_float::of(a.value + b.value);
}
static inline gpu_float operator-(gpu_float a, gpu_float b)
{
    return gpu_float::of(a.value - b.value);
}
static inline gpu_float operator*(gpu_float a, gpu_float b)
{
    return gpu_float::of(a.value * b.value);
}
static inline gpu_float operator/(gpu_float a, gpu_float b)
{
    return gpu_float::of(a.value / b.value);
}
static inline gpu_float operator-(gpu_float a) { return gpu_float(-a.value); }
static inline bool operator>(gpu_float a, gpu_float b) { return a.value > b.value; }
static inline bool operator<=(gpu_float a, gpu_float b) { return a.value <= b.value; }
static inline bool operator>=(gpu_float a, gpu_float b) { return a.value >= b.value; }
static inline bool operator<(gpu_float a, gpu_float b) { return a.value < b.value; }

/* In place of backends/scalar.h, whose functions for graphs of ops promise no bits. */
#define MTI_SCALAR_H
#define MTI_HD          static inline
#define MTI_ROUND_MAGIC gpu_float(12582912.0f)
static inline uint32_t mti_f32_bits(gpu_float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline gpu_float mti_f32_from_bits(uint32_t u)
{
    gpu_float x;
    memcpy(&x, &u, sizeof u);
    return x;
}
#define float gpu_float
#include "backends/moments.h"
#include "backends/quantize_codes.h"
#undef float

static void the_scale_of_a_block_that_is_not_finite_has_the_bits_of_the_cpus(void **)
{
    const uint32_t largest[] = {0x7f800000u, 0x7fc00000u, 0x7fffffffu};
    for (int nf4 = 0; nf4 < 2; nf4++)
        for (uint32_t bits : largest)
            assert_int_equal(mti_f32_bits(mti_block_scale(nf4, bits)), 0x7fc00000u);
}

/* Its codes and what is computed from them hold no NaN, so the class of float does not matter. */
static void its_codes_are_those_of_the_cpus(void **)
{
    gpu_float scale = mti_block_scale(true, 0x7fc00000u);
    assert_false(mti_scale_divides(scale));
    assert_int_equal(mti_f32_bits(mti_moment_inverse(scale)), 0);
    gpu_float inverse = mti_moment_inverse(gpu_float(4.0f));
    assert_int_equal(mti_moment_encode(true, gpu_float(4.0f) * inverse), 255);
    assert_int_equal(mti_int8_encode(gpu_float(2.5f)), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scale_of_a_block_that_is_not_finite_has_the_bits_of_the_cpus),
        cmocka_unit_test(its_codes_are_those_of_the_cpus),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
