/* gguf_blocks.c: blocks of GGUF's types as floats. d is a block's scale, m its least value. */
#include <string.h>
#include "io/gguf.h"

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float half(const unsigned char *at)
{
    const uint32_t bits = at[0] | (uint32_t)at[1] << 8, sign = (bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) return (sign ? -1.0F : 1.0F) * (float)fraction * 0x1p-24F;
    return from_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

/* 32 codes of 4 bits, or of 5, whose highest bits lie before the others; with a least value, or
 * around 0. */
static void widen_32(const unsigned char *b, float *y, bool five, bool has_least)
{
    const float d = half(b), m = has_least ? half(b + 2) : 0;
    const unsigned char *high = b + (has_least ? 4 : 2), *low = high + (five ? 4 : 0);
    const int zero = has_least ? 0 : five ? 16 : 8;
    for (int i = 0; i < 32; i++) {
        const int code = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
        const int fifth = five ? (high[i / 8] >> i % 8 & 1) << 4 : 0;
        y[i] = d * (float)(code + fifth - zero) + m;
    }
}

static void widen_q8_0(const unsigned char *b, float *y)
{
    const float d = half(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)(int8_t)b[2 + i];
}

/* Eight parts of 32 values, with scales and least values of 6 bits each in 12 bytes; with five bits
 * the highest lie before the others, those of a part in one place of each byte. */
static void widen_k(const unsigned char *b, float *y, bool five)
{
    const float d = half(b), least = half(b + 2);
    const unsigned char *s = b + 4, *high = b + 16, *q = high + (five ? 32 : 0);
    for (int part = 0; part < 8; part++) {
        const int scale = part < 4 ? s[part] & 63 : (s[part + 4] & 15) | (s[part - 4] >> 6) << 4,
                  min = part < 4 ? s[part + 4] & 63 : s[part + 4] >> 4 | (s[part] >> 6) << 4;
        const float by = d * (float)scale, less = least * (float)min;
        for (int i = 0; i < 32; i++) {
            const int both = q[part / 2 * 32 + i], fifth = five ? (high[i] >> part & 1) << 4 : 0;
            const int code = (part % 2 ? both >> 4 : both & 15) + fifth;
            y[part * 32 + i] = by * (float)code - less;
        }
    }
}

/* Two halves of four parts of 32 values: four low bits, two high ones, a scale for each 16. */
static void widen_q6_k(const unsigned char *b, float *y)
{
    const float d = half(b + 208);
    for (int part = 0; part < 8; part++) {
        const int half_of = part / 4, in = part % 4;
        const unsigned char *low = b + half_of * 64 + in % 2 * 32, *high = b + 128 + half_of * 32;
        for (int i = 0; i < 32; i++) {
            const int code = (in < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * in & 3) << 4;
            const float scale = (float)(int8_t)b[192 + half_of * 8 + in * 2 + i / 16];
            y[part * 32 + i] = d * scale * (float)(code - 32);
        }
    }
}

void mti_gguf_widen(mti_gguf_type type, const void *blocks, size_t n, float *out)
{
    const unsigned char *b = blocks;
    size_t bytes = 1, of = mti_gguf_block(type, &bytes);
    for (size_t i = 0; of && i < n; i += of, b += bytes, out += of) switch (type) {
        case MTI_GGUF_F32: memcpy(out, b, 4); break;
        case MTI_GGUF_F16: *out = half(b); break;
        case MTI_GGUF_BF16: *out = from_bits((uint32_t)b[0] << 16 | (uint32_t)b[1] << 24); break;
        case MTI_GGUF_Q4_0: widen_32(b, out, false, false); break;
        case MTI_GGUF_Q4_1: widen_32(b, out, false, true); break;
        case MTI_GGUF_Q5_0: widen_32(b, out, true, false); break;
        case MTI_GGUF_Q5_1: widen_32(b, out, true, true); break;
        case MTI_GGUF_Q8_0: widen_q8_0(b, out); break;
        case MTI_GGUF_Q4_K: widen_k(b, out, false); break;
        case MTI_GGUF_Q5_K: widen_k(b, out, true); break;
        case MTI_GGUF_Q6_K: widen_q6_k(b, out); break;
        }
}
