/* compress.h: keeps saved tensors in fewer bytes until backward needs them.
 *
 *     mt_compress *c = mt_compress_new(device, NULL);
 *     mt_compress_begin(c);
 *     loss = forward(model, batch);       what the ops save is packed, once per storage
 *     mt_compress_end(c);
 *     mt_backward(loss);                  and unpacked when its op asks for it
 *     mt_compress_get_stats(c, &stats);   what it saved
 *     mt_compress_free(c);
 *
 * A hook on saved tensors (autograd.h) over the functions "in fewer bits" of ops.h, and nothing
 * else. Masks and signs give gradients the bits they have without; bf16 and int8 do not, and
 * mt_relative_error tells by how much (Chen et al. 2021, ActNN; Jain et al. 2018, Gist). */
#ifndef MEMTAPE_COMPRESS_H
#define MEMTAPE_COMPRESS_H

#include "memtape/hooks.h"

MT_C_BEGIN

/* Rules for packing saved tensors, and what they have packed. */
typedef struct mt_compress mt_compress;

/* Never packed, whatever the rules: parameters, gradients, optimizer states, caches and states
 * of the generator; whole numbers; small storages; and except for masks the auxiliaries of an op,
 * which are statistics that its backward divides by or takes the exponential of. */
typedef enum mt_compress_rule {
    MT_COMPRESS_BF16,      /* f32 as bf16: 2 bytes of 4 */
    MT_COMPRESS_INT8,      /* f32, bf16 and f16 as mt_quantize's int8, where BF16 applies too */
    MT_COMPRESS_MASK_BITS, /* bool as mt_pack_bits: n / 8 bytes of n; exact */
    /* The mask of a dropout is not kept but drawn again; exact. Not a mask that ranks share: each
     * has a part of what one process draws. */
    MT_COMPRESS_MASK_SEED,
    /* What relu, and leaky_relu in place or not, keep: the signs suffice. n / 8 bytes; exact. If
     * another op keeps the same storage as it is, this lowers nothing (stats.in_vain). A NaN in
     * leaky_relu's input counts as positive. */
    MT_COMPRESS_SIGNS,
    MT_COMPRESS_RULE_COUNT
} mt_compress_rule;
MT_API const char *mt_compress_rule_name(mt_compress_rule rule); /* "bf16", "mask seed", ... */

/* All zero is the usual choice. */
typedef struct mt_compress_options {
    unsigned rules;   /* bits 1u << rule; 0: the exact ones, MASK_SEED and SIGNS */
    size_t min_bytes; /* smaller storages stay; 0: those under 4096 bytes */
    int block;        /* of int8: values that share a scale; 0: 128 */
} mt_compress_options;

/* Distinct storages, their bytes, and the bytes of what is kept instead. */
typedef struct mt_compress_count {
    size_t n, bytes_before, bytes_after;
} mt_compress_count;

/* Since the last mt_compress_begin. */
typedef struct mt_compress_stats {
    size_t saves;        /* tensors that the ops saved through the hook, and of these: */
    size_t saves_shared; /* views of a storage that was packed already by the same rule */
    size_t saves_left;   /* not packed by any rule */
    mt_compress_count by_rule[MT_COMPRESS_RULE_COUNT];
    /* Among those, storages that were still held unpacked at mt_compress_end (or now, before it),
     * by a caller or by an op for which they are not packed. Their packed copies cost extra bytes.
     */
    mt_compress_count in_vain;
} mt_compress_stats;

/* options: NULL for all zero; copied. The device is retained. The caller frees it once; what is
 * packed keeps what it needs. */
MT_API mt_compress *mt_compress_new(mt_device *device, const mt_compress_options *options);
MT_API void mt_compress_free(mt_compress *compress);
/* Between the two it packs what this thread's ops save. begin pushes a hook, end pops it: hooks
 * nest, and a ledger begun before sees the packed tensors, one begun after sees what was saved.
 * Packed copies have category MT_PACKED. A storage of which several views are saved is packed
 * whole, once, and comes back once for all of them; until mt_compress_end its packed copy stays on
 * the device, also where a hook outside takes it away. */
MT_API mt_status mt_compress_begin(mt_compress *compress);
MT_API mt_status mt_compress_end(mt_compress *compress);
MT_API mt_status mt_compress_get_stats(mt_compress *compress, mt_compress_stats *out);

/* |got - exact| / |exact| as Euclidean norms, computed in f64: 0 where all bits agree, a NaN and an
 * error on failure. Same shape; any floating dtypes. */
MT_API double mt_relative_error(mt_tensor *got, mt_tensor *exact);

MT_C_END
#endif
