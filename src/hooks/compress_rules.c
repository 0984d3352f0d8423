/* compress_rules.c: which tensors are packed, and how. */
#include <math.h>
#include "hooks/compress.h"

const char *mt_compress_rule_name(mt_compress_rule rule)
{
    static const char *const names[] = {"bf16", "int8", "mask bits", "mask seed", "signs"};
    return (unsigned)rule < MT_COMPRESS_RULE_COUNT ? names[rule] : "";
}

static bool has(const mt_compress *c, mt_compress_rule rule)
{
    return c->options.rules >> rule & 1u;
}

static bool is_left(mt_category category)
{
    return category == MT_PARAMETER || category == MT_GRADIENT || category == MT_OPTIMIZER ||
           category == MT_RNG_STATE || category == MT_CACHE;
}

/* Whether t is contiguous and covers its storage. */
static bool is_whole(mt_tensor *t)
{
    return mt_is_contiguous(t) &&
           (size_t)mt_numel(t) * mt_dtype_size(mt_dtype_of(t)) == mt_storage_of(t).bytes;
}

static mt_compress_rule rule_for(const mt_compress *c, const mt_save_info *info, mt_tensor *t)
{
    mt_dtype dtype = mt_dtype_of(t);
    if (dtype == MT_BOOL) {
        bool drawn = info->p > 0 && is_whole(t);
        if (drawn && has(c, MT_COMPRESS_MASK_SEED)) return MT_COMPRESS_MASK_SEED;
        return has(c, MT_COMPRESS_MASK_BITS) ? MT_COMPRESS_MASK_BITS : MT_COMPRESS_RULE_COUNT;
    }
    if (!mt_dtype_is_float(dtype)) return MT_COMPRESS_RULE_COUNT;
    if (info->read == MT_READ_SIGN && has(c, MT_COMPRESS_SIGNS)) return MT_COMPRESS_SIGNS;
    if (info->role == MT_SAVE_AUX) return MT_COMPRESS_RULE_COUNT;
    if (dtype != MT_F64 && has(c, MT_COMPRESS_INT8)) return MT_COMPRESS_INT8;
    return dtype == MT_F32 && has(c, MT_COMPRESS_BF16) ? MT_COMPRESS_BF16 : MT_COMPRESS_RULE_COUNT;
}

static mt_quant int8_of(const mt_compress *c)
{
    return (mt_quant){.format = MT_QUANT_INT8, .block = c->options.block};
}

static size_t bytes_after(const mt_compress *c, mt_compress_rule rule, int64_t n)
{
    mt_quant int8 = int8_of(c);
    switch (rule) {
    case MT_COMPRESS_BF16: return 2 * (size_t)n;
    case MT_COMPRESS_INT8: return mt_quantized_bytes(&int8, n);
    case MT_COMPRESS_MASK_SEED: return 0;
    default: return ((size_t)n + 7) / 8;
    }
}

mt_compress_rule mti_compress_choose(const mt_compress *c, const mt_save_info *info, mt_tensor *t)
{
    mt_storage_info storage = mt_storage_of(t);
    if (mt_device_of(t) != c->device || storage.bytes < c->options.min_bytes ||
        is_left(storage.category))
        return MT_COMPRESS_RULE_COUNT;
    mt_compress_rule rule = rule_for(c, info, t);
    int64_t n = (int64_t)(storage.bytes / mt_dtype_size(mt_dtype_of(t)));
    bool pays = rule != MT_COMPRESS_RULE_COUNT && bytes_after(c, rule, n) < storage.bytes;
    return pays ? rule : MT_COMPRESS_RULE_COUNT;
}

bool mti_compress_pack(const mt_compress *c, mti_packed_storage *s, mt_tensor *t)
{
    mt_quant int8 = int8_of(c);
    s->count.bytes_after = bytes_after(c, s->rule, s->n);
    if (s->rule == MT_COMPRESS_MASK_SEED) return true;
    mt_layout flat = {.dtype = s->dtype, .rank = 1, .shape = {s->n}, .strides = {1}};
    MT_AUTO mt_tensor *whole = mt_view_as(t, &flat);
    if (!whole) return false;
    s->packed = s->rule == MT_COMPRESS_BF16   ? mt_cast(whole, MT_BF16)
                : s->rule == MT_COMPRESS_INT8 ? mt_quantize(whole, &int8)
                                              : mt_pack_bits(whole);
    return s->packed != NULL;
}

mt_tensor *mti_compress_unpack(const mt_compress *c, const mti_packed_storage *s, mt_tensor *packed)
{
    mt_quant int8 = int8_of(c);
    switch (s->rule) {
    case MT_COMPRESS_BF16: return mt_cast(packed, s->dtype);
    case MT_COMPRESS_INT8: return mt_dequantize(packed, &int8, s->dtype, 1, &s->n);
    case MT_COMPRESS_MASK_SEED:
        return mt_dropout_mask(c->device, 1, &s->n, s->p, s->seed, s->offset);
    default: return mt_unpack_bits(packed, s->dtype, 1, &s->n);
    }
}

double mt_relative_error(mt_tensor *got, mt_tensor *exact)
{
    bool mode = mt_set_grad_mode(false);
    MT_AUTO mt_tensor *a = mt_cast(got, MT_F64);
    MT_AUTO mt_tensor *b = mt_cast(exact, MT_F64);
    double norm[2] = {0};
    bool ok = a && b && mt_set(&a, mt_sub(a, b)) == MT_OK;
    for (int i = 0; ok && i < 2; i++) {
        mt_tensor *v = i ? b : a;
        MT_AUTO mt_tensor *square = mt_mul(v, v);
        MT_AUTO mt_tensor *sum = square ? mt_sum_all(square) : NULL;
        if ((ok = sum != NULL)) norm[i] = mt_item(sum);
    }
    mt_set_grad_mode(mode);
    if (!ok) return NAN;
    return norm[0] == 0 ? 0 : sqrt(norm[0] / norm[1]);
}
