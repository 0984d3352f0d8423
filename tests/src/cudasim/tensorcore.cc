/* tensorcore.cc: ldmatrix and mma, after the tables of fragments in the PTX manual. */
#include "cudasim/cudasim.h"

using cudasim::collective;
using cudasim::slot;

static constexpr unsigned whole_warp = 0xffffffffu;

struct operands {
    uint32_t a[4], b[2];
    float d[4];
};

static uint16_t low_or_high(uint32_t pair, int high) { return (uint16_t)(pair >> (16 * high)); }

/* Lane 4 g + t holds, low half first:
 *   a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..]
 *   b[0] = B[2t..][g], b[1] = B[2t+8..][g]
 *   d[0..1] = D[g][2t..], d[2..3] = D[g+8][2t..] */
template <float (*value)(uint16_t)> static void multiply(slot *slots, unsigned)
{
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        operands in = cudasim::unpack<operands>(slots[lane]);
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++)
            for (int h = 0; h < 2; h++)
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + h] = value(low_or_high(in.a[i], h));
        for (int i = 0; i < 2; i++)
            for (int h = 0; h < 2; h++) b[2 * t + i * 8 + h][g] = value(low_or_high(in.b[i], h));
    }
    for (int lane = 0; lane < 32; lane++) {
        operands io = cudasim::unpack<operands>(slots[lane]);
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            int row = g + i / 2 * 8, column = 2 * t + i % 2;
            float sum = 0;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            io.d[i] += sum;
        }
        slots[lane] = cudasim::pack(io);
    }
}

template <float (*value)(uint16_t)>
static void mma(float *d, const uint32_t *a, const uint32_t *b, cudasim::place here)
{
    operands mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    memcpy(mine.d, d, sizeof mine.d);
    slot s = cudasim::pack(mine);
    cudasim::meet(collective::mma, whole_warp, here, &s, multiply<value>);
    mine = cudasim::unpack<operands>(s);
    memcpy(d, mine.d, sizeof mine.d);
}

void mti_mma_bf16(float *d, const uint32_t *a, const uint32_t *b, cudasim::place here)
{
    mma<cudasim_bf16_value>(d, a, b, here);
}

void mti_mma_f16(float *d, const uint32_t *a, const uint32_t *b, cudasim::place here)
{
    mma<cudasim_half_value>(d, a, b, here);
}

static void load_matrices(uint32_t *r, const void *row, bool transposed, cudasim::place here)
{
    if ((uintptr_t)row % 16) cudasim::fault(here, "ldmatrix of a row that is not 16-byte aligned");
    const slot *rows =
        cudasim::exchange(collective::ldmatrix, whole_warp, here, cudasim::pack(row));
    int g = cudasim::lane() / 4, t = cudasim::lane() % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int h = 0; h < 2; h++) {
            int r_of = transposed ? 2 * t + h : g, c_of = transposed ? g : 2 * t + h;
            const uint16_t *p = (const uint16_t *)cudasim::unpack<const void *>(rows[8 * i + r_of]);
            pair[h] = p[c_of];
        }
        r[i] = pair[0] | (uint32_t)pair[1] << 16;
    }
}

void mti_ldmatrix_x4(uint32_t *r, const void *row, cudasim::place here)
{
    load_matrices(r, row, false, here);
}

void mti_ldmatrix_x4_trans(uint32_t *r, const void *row, cudasim::place here)
{
    load_matrices(r, row, true, here);
}
