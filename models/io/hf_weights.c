/* hf_weights.c: weights under the names of Hugging Face's checkpoints. What lies together here and
 * apart there (experts) is read and written through views of the parameter. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include "io/hf_config.h"
#include "io/hf_files.h"
#include "io/saved_run.h"
#include "memtape/models/model.h"
#include "memtape/ops.h"
#include "memtape/quantize.h"

typedef struct hf_name {
    unsigned families;
    const char *ours, *theirs;
} hf_name;

static const hf_name names[] = {
#define FAMILY(...)
#define NAME(...) {__VA_ARGS__},
#include "io/hf_families.def"
#include "io/hf_names.def"
#undef FAMILY
};
enum { N_NAMES = sizeof names / sizeof *names };

/* What is read in MXFP4 for a parameter that is wider. */
typedef struct packed {
    mt_tensor *codes, *param; /* param: borrowed */
} packed;

static const mt_quant mxfp4 = {.format = MT_QUANT_MXFP4};

/* A checkpoint that is read, or, without files, one of these families that is written. */
typedef struct hub {
    const char *path;
    unsigned family, likely; /* likely: what the model may be of */
    int64_t layers, ahead;   /* of the model; predictions ahead have those behind */
    bool has_data;           /* the model */
    bool tied;               /* it has no head of its own */
    bool bert, pooled;
    mti_hf_files files;
    MTI_VEC(mt_named_tensor) tensors; /* named as there; views of parameters, or of `packed` */
    MTI_VEC(packed) packed;
} hub;

/* ---- a parameter as tensors of a file ---- */

#define LONGEST MTI_HF_NAME

/* How many names of theirs lie one after the other in one of ours. */
static int64_t words(const char *theirs)
{
    int64_t n = 1;
    while ((theirs = strchr(theirs, ' '))) n++, theirs++;
    return n;
}

/* The i-th of theirs; rest: our name behind that of the row. */
static void write_name(char name[LONGEST], const char *theirs, const char *rest, long long layer,
                       int64_t i)
{
    const int64_t several = words(theirs);
    const char *from = theirs + (*theirs == '^' || *theirs == '~');
    size_t n = 0;
    for (int64_t skip = i % several; skip; skip--) from = strchr(from, ' ') + 1;
    for (; *from && *from != ' ' && n < LONGEST - 32; from++)
        if (*from == '#' || *from == '@')
            n += (size_t)snprintf(name + n, 24, "%lld",
                                  *from == '#' ? layer : (long long)(i / several));
        else
            name[n++] = *from;
    snprintf(name + n, LONGEST - n, "%s", rest);
}

/* The file that has the tensor, and *e (may be NULL) what it is; NULL: none has. */
static mt_safetensors *file_of(const hub *h, const char *name, mt_safetensors_entry *e)
{
    for (size_t i = 0; i < h->files.n; i++)
        if (mt_safetensors_find(h->files.at[i], name, e)) return h->files.at[i];
    return NULL;
}

static bool is_in_files(const hub *h, const char *name, const char *suffix)
{
    char whole[LONGEST + 16];
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    return file_of(h, whole, NULL) != NULL;
}

static bool is_packed(const hub *h, const hf_name *as, const char *name)
{
    return *as->theirs == '^' && is_in_files(h, name, "_blocks");
}

/* Matrices that are swapped have biases beside them, others of the same name have none. */
static bool is_there(const hub *h, const hf_name *as, const char *name)
{
    return (as->families & h->family) || is_packed(h, as, name) ||
           (is_in_files(h, name, "") && (*as->theirs != '^' || is_in_files(h, name, "_bias")));
}

/* The i-th of n equal shards. */
static mt_tensor *shard_of(mt_tensor *t, int64_t i, int64_t n)
{
    if (n == 1) return mt_retain(t);
    if (mt_rank(t) == 1) return mt_slice(t, 0, i * (mt_numel(t) / n), mt_numel(t) / n);
    const int64_t columns = mt_shape(t)[mt_rank(t) - 1], rows = mt_numel(t) / columns / n;
    mt_tensor *view = mt_reshape(t, MT_SHAPE(n * rows, columns));
    mt_set(&view, mt_slice(view, 0, i * rows, rows));
    return view;
}

/* Takes view over. */
static bool add_view(hub *h, const char *name, const char *suffix, mt_tensor *view)
{
    char whole[LONGEST + 16];
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    mt_named_tensor t = {view ? mti_strdup(whole) : NULL, view};
    if (t.name && MTI_PUSH(&h->tensors, t)) return true;
    mti_free((char *)t.name), mt_release(view);
    return false;
}

/* n bytes of codes from `first` on, in the shape that the file has, if it has so many. */
static mt_tensor *bytes_of(const hub *h, mt_tensor *codes, int64_t first, int64_t n,
                           const char *name, const char *suffix)
{
    char whole[LONGEST + 16];
    mt_safetensors_entry e = {0};
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    file_of(h, whole, &e);
    mt_tensor *view = mt_slice(codes, 0, first, n);
    if (e.rank && e.bytes == (size_t)n && e.dtype == MT_U8)
        mt_set(&view, mt_reshape(view, e.rank, e.shape));
    return view;
}

/* ours as scales, then codes: of a layer that keeps them so, or to be widened once they are read */
static bool add_packed(hub *h, const char *name, mt_tensor *ours)
{
    if (!is_in_files(h, name, "_scales"))
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: does not fit the model; missing \"%s_scales\"",
                             h->path, name);
    const bool keeps = mt_dtype_of(ours) == MT_U8;
    const int64_t n = (int64_t)(keeps ? mt_numel(ours) / 17 : mt_numel(ours) / 32);
    mt_tensor *codes =
        keeps ? mt_retain(ours)
              : mt_empty(mt_device_of(ours), MT_U8,
                         MT_SHAPE((int64_t)mt_quantized_bytes(&mxfp4, mt_numel(ours))));
    if (!codes || !MTI_PUSH(&h->packed, ((packed){codes, keeps ? NULL : ours}))) {
        mt_release(codes);
        return false;
    }
    return add_view(h, name, "_scales", bytes_of(h, codes, 0, n, name, "_scales")) &&
           add_view(h, name, "_blocks", bytes_of(h, codes, n, 16 * n, name, "_blocks"));
}

static bool widen(const packed *p)
{
    if (!p->param) return true;
    mt_tensor *wide = mt_dequantize(p->codes, &mxfp4, mt_dtype_of(p->param), mt_rank(p->param),
                                    mt_shape(p->param));
    bool grad = mt_set_grad_mode(false), ok = wide && mt_copy(p->param, wide) == MT_OK;
    mt_set_grad_mode(grad);
    mt_release(wide);
    return ok;
}

/* The rest of a path that begins with a layer's, whose number is *layer. */
static const char *in_layer(const char *path, int64_t layers, long long *layer)
{
    int behind = 0;
    if (sscanf(path, "h.%lld.%n", layer, &behind) == 1 && behind) return path + behind;
    behind = 0;
    if (sscanf(path, "mtp.%lld.%n", layer, &behind) < 1 || !behind) return path;
    *layer += layers;
    return path + behind + (strncmp(path + behind, "block.", 6) ? 0 : 6);
}

/* Whether the path is the row's, or below it. */
static bool is_of(const hf_name *as, const char *path)
{
    const size_t n = strlen(as->ours);
    return !strncmp(path, as->ours, n) && (!path[n] || path[n] == '.');
}

/* Those that the model may be of; c NULL: all. */
static unsigned families_of(const mt_model_config *c)
{
    if (!c) return ANY;
    return c->kind == MT_MODEL_GPT     ? (c->position_offset        ? OPT
                                          : mti_learns_positions(c) ? GPT2
                                                                    : NEOX)
           : c->kind == MT_MODEL_LLAMA ? ROTARY
           : c->pooled                 ? BODY
           : c->position_offset        ? ROBERTA
                                       : BERT;
}

bool mti_hf_module_name(const mt_model_config *c, const char *path, char name[MTI_HF_NAME])
{
    const unsigned families = families_of(c);
    long long layer = 0;
    const char *rest = in_layer(path, c->layers, &layer);
    for (const hf_name *as = names; as < names + N_NAMES; as++)
        if (as->families & families && is_of(as, rest) && !strpbrk(as->theirs, " @^")) {
            write_name(name, as->theirs, rest + strlen(as->ours), layer, 0);
            return true;
        }
    return false;
}

static bool is_missing(const hub *h, const char *name, const mt_named_tensor *ours)
{
    return mti_fail_bool(MT_ERR_ARGUMENT, "%s: does not fit the model; missing \"%s\" (%s)",
                         h->path, name, ours->name);
}

/* Adds ours under the first name that is there. */
static bool add_param(hub *h, const mt_named_tensor *ours)
{
    char name[LONGEST] = "", first[LONGEST] = "";
    long long layer = 0;
    bool swapped = false;
    const char *path = in_layer(ours->name, h->layers, &layer);
    for (const hf_name *as = names; as < names + N_NAMES; as++) {
        const size_t length = strlen(as->ours);
        if (!is_of(as, path)) continue;
        write_name(name, as->theirs, path + length, layer, 0);
        if (as->families & h->likely && (!*first || (swapped && *as->theirs != '^')))
            strcpy(first, name);
        swapped = *as->theirs == '^';
        if (!is_there(h, as, name)) continue;
        if (is_packed(h, as, name)) return add_packed(h, name, ours->tensor);
        if (*as->theirs == '^') return add_view(h, name, "", mt_transpose(ours->tensor, 1, 2));
        if (*as->theirs == '~' && mt_rank(ours->tensor) == 2)
            return add_view(h, name, "", mt_transpose(ours->tensor, 0, 1));
        const int64_t n =
            words(as->theirs) * (strchr(as->theirs, '@') ? mt_shape(ours->tensor)[0] : 1);
        bool ok = true;
        for (int64_t i = 0; ok && i < n; i++) {
            write_name(name, as->theirs, path + length, layer, i);
            ok = h->files.n && !is_in_files(h, name, "")
                     ? is_missing(h, name, ours)
                     : add_view(h, name, "", shard_of(ours->tensor, i, n));
        }
        return ok;
    }
    return is_missing(h, *first ? first : "?", ours);
}

static bool add_all(hub *h, mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    const mt_model_config *c = mt_model_config_of(m);
    bool grad = mt_set_grad_mode(false), ok = mt_module_params(m, &list, &n) == MT_OK;
    h->layers = c ? c->layers : 0, h->ahead = c ? c->mtp_layers : 0;
    h->likely = families_of(c);
    h->bert = c && c->kind == MT_MODEL_BERT, h->pooled = c && c->pooled;
    h->tied = !mt_module_child(m, "lm_head");
    h->has_data = ok && n && mt_device_has_data(mt_device_of(list->tensor));
    for (size_t i = 0; ok && i < n; i++) ok = add_param(h, &list[i]);
    mt_set_grad_mode(grad);
    return ok;
}

static mt_status hub_close(hub *h, bool ok)
{
    for (size_t i = 0; i < h->tensors.n; i++)
        mti_free((char *)h->tensors.at[i].name), mt_release(h->tensors.at[i].tensor);
    for (size_t i = 0; i < h->packed.n; i++) mt_release(h->packed.at[i].codes);
    mti_hf_files_close(&h->files);
    mti_free(h->tensors.at), mti_free(h->packed.at);
    return ok ? MT_OK : mt_last_status();
}

/* ---- reading ---- */

/* What a layer that predicts ahead has a copy of in DeepSeek-V3's files, and shares here. */
static const char *const shared[][2] = {{"embed_tokens.weight", "model.embed_tokens.weight"},
                                        {"shared_head.head.weight", "lm_head.weight"}};

/* Whether two tensors of the files have the same bytes; without data, the same number. */
static bool are_same(const hub *h, const char *a, const char *b)
{
    enum { AT_ONCE = 1 << 20 };
    mt_safetensors_entry e, other;
    const mt_safetensors *f = file_of(h, a, &e), *g = file_of(h, b, &other);
    char *data = mti_malloc(2 * AT_ONCE);
    bool read = data != NULL, same = g && e.bytes == other.bytes && e.dtype == other.dtype;
    for (uint64_t at = 0; h->has_data && read && same && at < e.bytes; at += AT_ONCE) {
        const size_t n = e.bytes - at < AT_ONCE ? (size_t)(e.bytes - at) : AT_ONCE;
        read = mti_safetensors_read_part(f, a, at, data, n) &&
               mti_safetensors_read_part(g, b, at, data + AT_ONCE, n);
        same = read && !memcmp(data, data + AT_ONCE, n);
    }
    mti_free(data);
    return read &&
           (same ||
            mti_fail_bool(MT_ERR_ARGUMENT,
                          "%s: tensor \"%s\" is not the same as \"%s\", which the model shares",
                          h->path, a, b));
}

/* What files have a copy of for a head that is the embedding, and its original. */
static const char *const copies[][2] = {
    {"lm_head.weight", "model.embed_tokens.weight"},
    {"lm_head.weight", "transformer.wte.weight"},
    {"lm_head.weight", "wte.weight"},
    {"embed_out.weight", "gpt_neox.embed_in.weight"},
    {"lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"},
    {"lm_head.decoder.bias", "lm_head.bias"},
    {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
    {"cls.predictions.decoder.bias", "cls.predictions.bias"}};

/* Whether the tensor is one that older files have and that follows from the configuration, or such
 * a copy. *ok: false if that is another. */
static bool is_derived(const hub *h, const char *name, bool *ok)
{
    static const char *const patterns[] = {"*.rotary_emb.inv_freq",   "h.*.attn.bias",
                                           "*.h.*.attn.bias",         "*.attn.masked_bias",
                                           "*.attention.bias",        "*.attention.masked_bias",
                                           "embeddings.position_ids", "*.embeddings.position_ids"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (!fnmatch(patterns[i], name, 0)) return true;
    for (size_t i = 0; h->tied && i < sizeof copies / sizeof *copies; i++)
        if (!strcmp(name, copies[i][0]) && file_of(h, copies[i][1], NULL)) {
            *ok = are_same(h, name, copies[i][1]);
            return true;
        }
    return false;
}

/* Whether the tensor is of a head that this bert leaves: files may have several. */
static bool is_of_other_head(const hub *h, const char *name)
{
    static const char *const heads[][4] = {{"cls.seq_relationship.*", "pooler.dense.*",
                                            "bert.pooler.dense.*", "roberta.pooler.dense.*"},
                                           {"cls.*", "lm_head.*", "classifier.*", "qa_outputs.*"}};
    bool is_it = false;
    for (int i = 0; h->bert && i < 4; i++) is_it = is_it || !fnmatch(heads[h->pooled][i], name, 0);
    return is_it;
}

/* Whether the tensor is derived, or one that the model leaves: of another head, *left, or of a
 * layer which predicts ahead and is not the model's, *left, or shares it, and it is there, and
 * equal. *ok: false if it is not. */
static bool passes_over(const hub *h, const char *name, bool *left, bool *ok)
{
    char of_layer[64];
    long long layer;
    int behind = 0;
    *left = false;
    if (is_derived(h, name, ok)) return true;
    *left = is_of_other_head(h, name);
    if (*left) return true;
    if (sscanf(name, "model.layers.%lld.%n", &layer, &behind) < 1 || !behind || layer < h->layers)
        return false;
    snprintf(of_layer, sizeof of_layer, "model.layers.%lld.eh_proj.weight", layer);
    *left = layer >= h->layers + h->ahead;
    if (*left) return file_of(h, of_layer, NULL) != NULL;
    for (int i = 0; i < 2; i++)
        if (!strcmp(name + behind, shared[i][0])) {
            const bool tied = !file_of(h, shared[i][1], NULL);
            *ok = are_same(h, name, shared[tied ? 0 : i][1]);
            return true;
        }
    return false;
}

/* Adds what is passed over, without a tensor. */
static bool pass_over(hub *h, char *text, size_t n_bytes)
{
    size_t n = 0;
    bool ok = true, left;
    for (size_t i = 0; ok && i < h->files.n; i++)
        for (size_t k = 0; ok && k < h->files.at[i]->entries.n; k++) {
            const char *name = h->files.at[i]->entries.at[k].info.name;
            if (!passes_over(h, name, &left, &ok)) continue;
            n += left;
            mt_named_tensor t = {mti_strdup(name), NULL};
            ok = ok && t.name && MTI_PUSH(&h->tensors, t);
            if (!ok) mti_free((char *)t.name);
        }
    if (n_bytes) *text = '\0';
    if (n_bytes && n && h->bert)
        snprintf(text, n_bytes, "left: %zu tensors of other heads\n", n);
    else if (n_bytes && n)
        snprintf(text, n_bytes,
                 "left: %zu tensors of layers from %lld on, which predict ahead; mtp_layers takes "
                 "them\n",
                 n, (long long)(h->layers + h->ahead));
    return ok;
}

/* Moves the tensors that f has before the others; *n: how many. */
static mt_named_tensor *those_of(hub *h, const mt_safetensors *f, size_t *n)
{
    mt_named_tensor *at = h->tensors.at;
    *n = 0;
    for (size_t i = 0; i < h->tensors.n; i++) {
        mt_named_tensor t = at[i];
        if (!mt_safetensors_find(f, t.name, NULL)) continue;
        at[i] = at[*n];
        at[(*n)++] = t;
    }
    return at;
}

/* Whether no weight is in 8 bits with a scale for each of its blocks. */
static bool has_no_scales(const hub *h)
{
    static const char scale[] = "_scale_inv";
    for (size_t i = 0; i < h->files.n; i++)
        for (size_t k = 0; k < h->files.at[i]->entries.n; k++) {
            const char *name = h->files.at[i]->entries.at[k].info.name;
            const size_t n = strlen(name), end = sizeof scale - 1;
            char shown[MTI_SHOWN];
            if (n >= end && !strcmp(name + n - end, scale))
                return mti_fail_bool(MT_ERR_UNSUPPORTED,
                                     "%s: tensor \"%s\": weights in FP8 with scales; need bf16, as "
                                     "DeepSeek's fp8_cast_bf16.py makes it",
                                     h->path, mti_shown(shown, name));
        }
    return true;
}

mt_status mt_hf_load(const char *path, mt_module *m) { return mt_hf_load_with(path, m, NULL, 0); }

mt_status mt_hf_load_with(const char *path, mt_module *m, char *left, size_t n_bytes)
{
    hub h = {.path = path};
    size_t n;
    if (!mti_given(m, "hf_load", "the module")) return mt_last_status();
    if (!path || (n_bytes && !left))
        return mti_fail(MT_ERR_ARGUMENT, "hf_load: the %s is NULL",
                        path ? "text for what is left" : "path");
    bool ok = mti_hf_files_open(&h.files, path) && has_no_scales(&h) && add_all(&h, m) &&
              pass_over(&h, left, n_bytes);
    for (size_t i = 0; ok && i < 2 * h.files.n; i++) { /* looks at all files before it reads one */
        mt_safetensors *f = h.files.at[i % h.files.n];
        const mt_named_tensor *list = those_of(&h, f, &n);
        if (i < h.files.n)
            ok = mti_weights_fit(f, list, n, true);
        else if (h.has_data)
            ok = mti_weights_load(f, list, n);
    }
    for (size_t i = 0; ok && i < h.packed.n; i++) ok = widen(&h.packed.at[i]);
    return hub_close(&h, ok);
}

/* ---- writing ---- */

mt_status mt_hf_save(const char *path, mt_module *m, const char *model_type)
{
    static const struct {
        const char *type;
        unsigned bit;
    } families[] = {
#define FAMILY(type, class, bit, ...) {type, bit},
#include "io/hf_families.def"
    };
    const mt_key_value format = {"format", "pt"};
    hub h = {.path = path ? path : "hf_save"};
    if (!mti_given(m, "hf_save", "the module")) return mt_last_status();
    const mt_model_config *c = mt_model_config_of(m);
    const bool pooled = c && c->pooled;
    for (size_t i = 0; model_type && i < sizeof families / sizeof *families; i++)
        if (!strcmp(model_type, families[i].type) && !(families[i].bit & BODY) == !pooled)
            h.family = families[i].bit;
    if (!h.family)
        return mti_fail(MT_ERR_ARGUMENT, "hf_save: the model_type \"%.60s\" is unknown",
                        model_type ? model_type : "NULL");
    bool ok =
        add_all(&h, m) && mt_safetensors_save(path, h.tensors.n, h.tensors.at, 1, &format) == MT_OK;
    return hub_close(&h, ok);
}
