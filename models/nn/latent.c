/* latent.c: attention whose keys and values are products of a latent (DeepSeek-AI 2024,
 * "DeepSeek-V2", 2.1): [b,s,d] -> [b,s,d].
 *
 *   latent [b,s,r], key part [b,s,p] = kv_a(x); latent = norm(latent)
 *   q = q(x), or q_b(norm(q_a(x))); of each head the last p elements are turned
 *   keys and values = kv_b(latent): of a head h - p elements of its key, then its value, v wide;
 * the last p elements of a key are the key part, turned, the same for all heads
 *
 * The tape keeps what the products want, and what any attention does: q and k, put together, and v
 * within the output of kv_b. A KV cache holds the latent and the turned key part, r + p elements a
 * position; keys and values of all positions are made again at each step, as Transformers does.
 *
 * Of ranks that share the layer each has some heads: some rows of q or q_b and of kv_b, and these
 * columns of proj. Latents and the key part are the same on all of them; or, where they split the
 * sequence, each makes those of its shard, and they are gathered, as Megatron-Core does. */
#include "nn/model.h"
#include "memtape/models/collectives.h"
#include "memtape/ops.h"

/* cat(a, b) over the last dimension */
static mt_tensor *join(mt_tensor *a, mt_tensor *b)
{
    return a && b ? mt_cat(2, (mt_tensor *[]){a, b}, mt_rank(a) - 1) : NULL;
}

/* *x [b,n,s,h], whose last elements are turned */
static bool turn_end(const mti_heads *l, mti_rope_tables *tables, mt_tensor **x)
{
    mt_tensor *part[2] = {NULL, NULL};
    bool ok =
        mt_split(*x, 3, 2, (const int64_t[]){l->dim - l->rope_dim, l->rope_dim}, part) == MT_OK &&
        mti_turn_heads(l, tables, &part[1]);
    mt_set(x, ok ? join(part[0], part[1]) : NULL);
    mt_release(part[0]), mt_release(part[1]);
    return *x != NULL;
}

/* part: what the core takes of q [b,s,a h], keys and values [b,t,a (h - p + v)], key part
 * [b,1,t,p], turned; these are borrowed */
static bool make_parts(const mti_heads *l, mt_tensor *const *in, mt_tensor *part[3])
{
    mti_rope_tables own = {0};
    part[0] = mti_split_heads(in[0], l->n);
    mt_tensor *kv = mti_split_heads(in[1], l->n);
    bool ok = part[0] && kv && turn_end(l, l->tables ? l->tables : &own, &part[0]);
    ok = ok && mt_split(kv, 3, 2, (const int64_t[]){l->dim - l->rope_dim, l->value_dim},
                        part + 1) == MT_OK;
    mti_rope_tables_free(&own);
    mt_release(kv);
    if (ok) {
        const int64_t *shape = mt_shape(part[1]);
        MT_AUTO mt_tensor *all =
            mt_expand(in[2], MT_SHAPE(shape[0], shape[1], shape[2], l->rope_dim));
        mt_set(&part[1], join(part[1], all));
    }
    return ok && part[1];
}

static mt_tensor *attend(mt_module *self, mt_tensor *const *in)
{
    mt_tensor *part[3] = {NULL, NULL, NULL};
    if (make_parts(mt_module_user(self), in, part)) return mti_attend(self, part);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    return NULL;
}

static mt_tensor *attend_parts(mt_module *self, mt_tensor *const *in)
{
    return mti_attend(self, (mt_tensor *[]){mt_retain(in[0]), mt_retain(in[1]), mt_retain(in[2])});
}

static mt_tensor *run_q(mt_module *self, mt_tensor *x) { return mt_forward_child(self, "q", x); }
static mt_tensor *run_q_b(mt_module *self, mt_tensor *x)
{
    return mt_forward_child(self, "q_b", x);
}
static mt_tensor *run_kv_b(mt_module *self, mt_tensor *x)
{
    return mt_forward_child(self, "kv_b", x);
}

/* A product of which ranks have some rows each. */
static mt_tensor *by_heads(mt_module *self, mt_forward_fn *run, mt_tensor *x)
{
    const mti_heads *l = mt_module_user(mt_module_child(self, "heads"));
    return l->enter ? l->enter(self, run, &l->ranks, l->sequence, x) : run(self, x);
}

/* The latent of queries; without one, x. If it is multiplied `later`, a view of x: its node is made
 * here, and so backward adds up the gradients of all readers of x in the same order. */
static mt_tensor *latent_of_queries(mt_module *self, mt_tensor *x, bool later)
{
    static const int order[3] = {0, 1, 2};
    if (!mt_module_child(self, "q_a")) return later ? mt_permute(x, order) : mt_retain(x);
    mt_tensor *h = mt_forward_child(self, "q_a", x);
    mt_set(&h, mt_forward_child(self, "q_a_norm", h));
    return h;
}

static mt_tensor *queries(mt_module *self, mt_tensor *latent)
{
    if (!latent) return NULL;
    return by_heads(self, mt_module_child(self, "q_a") ? run_q_b : run_q, latent);
}

/* *p, the key part, becomes that of all positions, which all heads read. */
static bool share_key_part(const mti_heads *l, mt_tensor **p)
{
    if (!*p || !l->enter) return *p != NULL;
    mt_set(p, l->sequence ? mt_all_gather(*p, 1, &l->ranks) : mt_replicate(*p, &l->ranks));
    return *p != NULL;
}

/* The parts of latents and the key part, which is not turned yet. */
static mt_status project_up(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    mt_module *self = user;
    const mti_heads *l = mt_module_user(mt_module_child(self, "heads"));
    mti_rope_tables own = {0};
    mt_tensor *wide[3] = {queries(self, in[0]), NULL, mt_retain(in[2])};
    (void)n_in, (void)n_out;
    wide[1] = wide[0] ? by_heads(self, run_kv_b, in[1]) : NULL;
    bool ok = wide[1] && mt_scope_push("heads") == MT_OK;
    if (ok) {
        ok = mti_turn_heads(l, l->tables ? l->tables : &own, &wide[2]) && make_parts(l, wide, out);
        mt_scope_pop();
    }
    for (int i = 0; i < 3; i++) mt_release(wide[i]);
    mti_rope_tables_free(&own);
    return ok ? MT_OK : mt_last_status();
}

/* *c [b,s,r], the latent, and *p [b,1,s,p], the key part, turned if `turned`; with a cache of all
 * positions */
static bool compress(mt_module *self, mt_tensor *x, bool turned, mt_tensor **c, mt_tensor **p)
{
    const mti_heads *l = mt_module_user(mt_module_child(self, "heads"));
    mt_tensor *part[2] = {NULL, NULL}, *h = mt_forward_child(self, "kv_a", x);
    bool ok = h && mt_split(h, 2, 2, (const int64_t[]){l->kv_rank, l->rope_dim}, part) == MT_OK;
    mt_release(h);
    mt_set(&part[0], ok ? mt_forward_child(self, "kv_a_norm", part[0]) : NULL);
    mt_set(&part[1], part[0] && share_key_part(l, &part[1]) ? mti_split_heads(part[1], 1) : NULL);
    ok = part[1] && mt_scope_push("heads") == MT_OK;
    if (ok) {
        ok = !turned || mti_turn_heads(l, l->tables, &part[1]);
        mt_scope_pop();
    }
    if (ok && l->cached) {
        mt_set(&part[0], mti_split_heads(part[0], 1));
        ok = part[0] && l->append(l->kv, &part[0], &part[1]) &&
             mt_set(&part[0],
                    mt_reshape(part[0], MT_SHAPE(mt_shape(part[0])[0], -1, l->kv_rank))) == MT_OK;
    }
    *c = part[0], *p = part[1];
    return ok;
}

/* What is run again has no tables to share, and a policy wants the same ops. */
static mt_tensor *run_heads(mt_module *heads, mti_run_fn *run, mt_tensor *const *in)
{
    mti_heads *l = mt_module_user(heads);
    mti_rope_tables *tables = l->tables;
    const mt_checkpoint_options *options = mti_module_checkpoint(heads, NULL);
    if (options && options->policy) l->tables = NULL;
    mt_tensor *h = mti_run_module(heads, run, 3, in);
    l->tables = tables;
    return h;
}

static mt_tensor *attend_latents(mt_module *self, mt_tensor *x)
{
    static const mt_checkpoint_options discarding = {.discard_outputs = true};
    mt_module *heads = mt_module_child(self, "heads");
    const mti_heads *l = mt_module_user(heads);
    const bool up = l->again & MT_RECOMPUTE_MLA_UP_PROJ && !l->cached;
    mt_tensor *in[3] = {latent_of_queries(self, x, up && l->shares_input), NULL, NULL};
    mt_tensor *part[3] = {NULL, NULL, NULL}, *h = NULL;
    if (!up) mt_set(&in[0], queries(self, in[0]));
    bool ok = in[0] && compress(self, x, !up, &in[1], &in[2]);
    if (ok && up)
        ok = mt_checkpoint(project_up, self, NULL, 3, in, 3, part, &discarding) == MT_OK;
    else if (ok)
        ok = mt_set(&in[1], by_heads(self, run_kv_b, in[1])) == MT_OK;
    const bool discards = ok && up;
    if (ok && mt_scope_push("heads") == MT_OK) {
        if (!up && l->again & MT_RECOMPUTE_CORE_ATTN) ok = make_parts(l, in, part);
        h = !ok       ? NULL
            : part[0] ? run_heads(heads, attend_parts, part)
                      : run_heads(heads, attend, in);
        mt_scope_pop();
    }
    if (discards) mt_pop_saved_hooks();
    for (int i = 0; i < 3; i++) mt_release(in[i]), mt_release(part[i]);
    return h;
}

static mt_tensor *attend_turned(mt_module *self, mt_tensor *const *x)
{
    mti_heads *l = mt_module_user(mt_module_child(self, "heads"));
    mti_rope_tables own = {0}, *shared = l->tables;
    if (!shared) l->tables = &own;
    mt_tensor *h = attend_latents(self, *x);
    l->tables = shared;
    mti_rope_tables_free(&own);
    return h;
}

static mt_tensor *latent_forward(mt_module *self, mt_tensor *x)
{
    if (mt_rank(x) != 3)
        return mti_fail_null(MT_ERR_ARGUMENT, "attention: x has %d dimensions; need [b,s,d]",
                             mt_rank(x));
    mti_heads *l = mt_module_user(mt_module_child(self, "heads"));
    mt_tensor *h =
        l->texts ? mti_each_text(self, l, attend_turned, 1, &x) : attend_turned(self, &x);
    mt_set(&h, mt_forward_child(self, "proj", h));
    mt_set(&h, mt_forward_child(self, "drop", h));
    return h;
}

static bool add_queries(mt_module *m, mt_device *device, const mt_model_config *c)
{
    const int64_t q = c->heads * c->head_dim;
    if (!c->q_rank) return mti_add_linear(m, "q", device, c, c->hidden, q, MTI_INIT_STD);
    return mti_add_linear(m, "q_a", device, c, c->hidden, c->q_rank, MTI_INIT_STD) &&
           mti_add_norm_of(m, "q_a_norm", device, c, c->q_rank) &&
           mti_add_linear(m, "q_b", device, c, c->q_rank, q, MTI_INIT_STD);
}

static mt_module *latent_new(mt_device *device, const mt_model_config *c)
{
    const int64_t joint = c->heads * (c->head_dim - c->rope_dim + c->value_dim);
    mt_module *m = mt_module_new("attention", latent_forward, NULL, NULL);
    return mti_module_complete(
        m, m && add_queries(m, device, c) &&
               mti_add_linear(m, "kv_a", device, c, c->hidden, c->kv_rank + c->rope_dim,
                              MTI_INIT_STD) &&
               mti_add_norm_of(m, "kv_a_norm", device, c, c->kv_rank) &&
               mti_add_linear(m, "kv_b", device, c, c->kv_rank, joint, MTI_INIT_STD) &&
               mt_module_add_child(m, "heads", mti_heads_new(c)) &&
               mti_add_linear(m, "proj", device, c, c->heads * c->value_dim, c->hidden,
                              mti_residual_std(c)) &&
               mti_add_dropout(m, c));
}

mt_module *mt_attention_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    if (!mti_config_resolve(config, MT_MODEL_ATTENTION, &c)) return NULL;
    return c.kv_rank ? latent_new(device, &c) : mti_attention_new(device, &c);
}
