/* shards.c: parameters of ZeRO 3 as shards, and a module's forward with whole ones. */
#include <string.h>
#include "memtape/ops.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

#define MOST_PARAMS 2 /* of one module of ours: weight and bias */

/* A module whose parameters are shards. */
typedef struct sharded {
    mti_unit *unit;
    bool opens; /* the first of a unit of several modules */
    int n;
    const char *names[MOST_PARAMS];
    int in_unit[MOST_PARAMS];
} sharded;

/* Runs m with whole parameters; the tape keeps their shards. */
static mt_tensor *run_sharded(mt_module *m, void *user, mt_tensor *x)
{
    const sharded *s = user;
    mt_tensor *whole[MOST_PARAMS] = {NULL}, *shard[MOST_PARAMS], *y = NULL;
    mti_regather *hooks[MOST_PARAMS];
    const bool of_several = s->opens || !mti_unit_is_closing(s->unit, NULL);
    mti_pass *pass = !s->opens || mti_unit_enter(s->unit) ? mti_unit_pass(s->unit) : NULL;
    int n = 0;
    bool ok = pass != NULL;
    for (; ok && n < s->n; n++) {
        shard[n] = mt_module_param(m, s->names[n]);
        whole[n] = mti_pass_forward(pass, s->in_unit[n]);
        hooks[n] = whole[n] ? mti_regather_param(whole[n], shard[n], pass, s->in_unit[n]) : NULL;
        ok = hooks[n] != NULL;
        if (!ok) break;
        mti_module_lend_param(m, s->names[n], whole[n]);
    }
    if (ok) y = mti_module_run_inner(m, x);
    for (int i = n - 1; i >= 0; i--) { /* what began last ends first */
        ok = mti_regather_end(hooks[i]) && ok;
        mti_module_lend_param(m, s->names[i], shard[i]);
    }
    for (int i = 0; i < s->n; i++) mt_release(whole[i]);
    mti_pass_release(pass);
    if (of_several && (!ok || !y || mti_unit_is_closing(s->unit, s)))
        ok = mti_unit_leave(s->unit, ok ? y : NULL) && ok;
    if (!ok) mt_set(&y, NULL);
    return y;
}

static void sharded_free(void *user)
{
    sharded *s = user;
    mti_unit_release(s->unit);
    mti_free(s);
}

static mt_tensor *new_shard(const mti_sharder *sharder, mt_dtype dtype, int rank,
                            const int64_t *shape)
{
    mti_view spec;
    size_t n_bytes;
    if (!sharder->parallel->host_shards) return mt_zeros(sharder->device, dtype, rank, shape);
    return mti_view_init(&spec, "shards", dtype, rank, shape, &n_bytes)
               ? mti_tensor_in_host(sharder->device, &spec)
               : NULL;
}

/* Zeros, until mti_rank_draw gives it values. */
static mt_tensor *shard_of(mti_sharder *sharder, mt_tensor *whole, const mt_group *group)
{
    if (whole == sharder->shared && sharder->shard) return mt_retain(sharder->shard);
    const int64_t n = mti_shard_of(mt_numel(whole), group).length;
    mt_dtype dtype = sharder->policy.f32_shards ? MT_F32 : mt_dtype_of(whole);
    mt_tensor *shard = new_shard(sharder, dtype, mt_rank(whole) > 1 ? 2 : 1,
                                 (const int64_t[]){mt_rank(whole) > 1 ? 1 : n, n});
    if (shard && (mt_set_category(shard, MT_PARAMETER) != MT_OK ||
                  mt_set_requires_grad(shard, mt_requires_grad(whole)) != MT_OK))
        mt_set(&shard, NULL);
    if (whole == sharder->shared) sharder->shard = shard;
    return shard;
}

/* Whether its parameters are those of experts that ranks divide. */
static bool is_divided(const mt_module *m, const mti_sharder *sharder)
{
    const char *kind = mt_module_kind(m);
    return mti_divides_experts(sharder->parallel) &&
           (!strcmp(kind, "grouped_linear") || !strcmp(kind, "expert_bias"));
}

/* A buffer stays whole, on the sharder's device; its first values are zeros. */
static bool move_buffer(mt_module *m, const mti_sharder *sharder, const char *name)
{
    const mt_tensor *of = mt_module_param(m, name);
    mt_tensor *own = mt_zeros(sharder->device, mt_dtype_of(of), mt_rank(of), mt_shape(of));
    if (!own || mt_set_category(own, MT_CACHE) != MT_OK) return mt_release(own), false;
    mt_release(mti_module_swap_param(m, name, own));
    return true;
}

static bool shard_param(mt_module *m, mti_sharder *sharder, sharded *s, const char *name)
{
    const char *kind = mt_module_kind(m);
    bool is_product = !strcmp(kind, "linear") || !strcmp(kind, MTI_TIED);
    mt_tensor *whole = mt_module_param(m, name);
    if (whole && mti_is_buffer(whole)) return move_buffer(m, sharder, name);
    if (!whole) return true;
    mti_sharded own = {.whole = mt_layout_of(whole),
                       .group = is_divided(m, sharder) ? mti_expert_data_group(sharder->parallel)
                                                       : mti_shard_group(sharder->parallel)};
    if (!(own.shard = shard_of(sharder, whole, &own.group))) return false;
    int i = mti_unit_add(s->unit, &own, is_product);
    mt_release(mti_module_swap_param(m, name, own.shard));
    s->names[s->n] = name;
    s->in_unit[s->n++] = i;
    return i >= 0;
}

/* The parameters of m itself. */
static bool shard_module(mt_module *m, mti_sharder *sharder)
{
    mti_unit *unit = is_divided(m, sharder) ? sharder->divided_unit : sharder->unit;
    if (!mt_module_param(m, "weight")) return true;
    const bool at_end = !sharder->unit && sharder->policy.group_ends,
               opens = at_end && !sharder->end;
    if (opens) sharder->end = mti_units_add(sharder->units, MTI_UNIT_BLOCK, NULL);
    if (at_end) unit = sharder->end;
    if (!unit && !at_end) unit = mti_units_add(sharder->units, MTI_UNIT_MODULE, m);
    sharded *s = unit ? mti_malloc(sizeof *s) : NULL;
    if (!s) return false;
    *s = (sharded){.unit = mti_unit_retain(unit), .opens = opens};
    if (at_end) mti_unit_set_closing(unit, s);
    mti_module_set_around(m, (mti_around){run_sharded, s, sharded_free});
    return shard_param(m, sharder, s, "weight") && shard_param(m, sharder, s, "bias");
}

bool mti_shard_params(mt_module *m, mti_sharder *sharder)
{
    const bool by_block = sharder->policy.gather != MTI_GATHER_MODULE;
    mti_unit *outer = sharder->unit;
    mt_module *child;
    bool ok = shard_module(m, sharder);
    if (!strcmp(mt_module_kind(m), "block")) {
        sharder->end = NULL;
        sharder->unit = by_block ? mti_units_add(sharder->units, MTI_UNIT_BLOCK, m) : NULL;
        ok = ok && (sharder->unit || !by_block);
    }
    if (ok && by_block && sharder->unit && mti_experts_of(m) &&
        mti_divides_experts(sharder->parallel)) {
        sharder->divided_unit = mti_units_add(sharder->units, MTI_UNIT_EXPERTS, m);
        ok = sharder->divided_unit != NULL;
    }
    for (size_t i = 0; ok && (child = mt_module_child_at(m, i)); i++)
        ok = mti_shard_params(child, sharder);
    sharder->unit = outer;
    if (mti_experts_of(m)) sharder->divided_unit = NULL;
    return ok;
}
