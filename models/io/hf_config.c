/* hf_config.c: from Hugging Face's config.json to mt_model_config, key by key (hf_keys.c). An
 * unknown key that could change shapes or values is refused, as a wrong model is worse than none.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "files/files.h"
#include "io/hf_config.h"
#include "io/hf_reader.h"

#define FAMILY(...)
#include "io/hf_families.def"

/* ---- the keys ---- */

/* A key without a row is ignored if it is a string, off or empty, which cannot change the model.
 * The others are told together, after the last key. */
static bool read_key(mti_hf_reader *r, const char *name, const json_t *value)
{
    char text[MTI_JSON_BEGIN];
    r->key = mti_hf_find_key(r->family, name);
    if (!strcmp(name, "model_type")) return true; /* it told the family */
    if (r->key ? !r->key->read : mti_hf_is_empty(value) || json_is_string(value)) {
        mti_hf_put(r->ignored, sizeof r->ignored, "%s%.60s", *r->ignored ? ", " : "", name);
        return true;
    }
    if (r->key) return mti_hf_read(r, value);
    r->n_unknown++;
    if (strlen(r->unknown) > sizeof r->unknown - MTI_JSON_BEGIN - 80) return true;
    mti_hf_put(r->unknown, sizeof r->unknown, "%s\"%.60s\" is %s", r->n_listed++ ? ", " : "", name,
               mti_json_begin(value, text));
    return true;
}

static bool check_unknown(const mti_hf_reader *r)
{
    char more[32] = "";
    if (!r->n_unknown) return true;
    if (r->n_unknown > r->n_listed)
        snprintf(more, sizeof more, " and %d more", r->n_unknown - r->n_listed);
    return mti_fail_bool(
        MT_ERR_FORMAT, MTI_ANY_FILE "%s%s; need %s if %s neither shapes nor values", r->unknown,
        more, r->n_unknown == 1 ? "a known key; remove it" : "known keys; remove them",
        r->n_unknown == 1 ? "it changes" : "they change");
}

static bool read_keys(mti_hf_reader *r, json_t *root)
{
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) if (!read_key(r, name, value)) return false;
    const char *missing = mti_hf_missing(r->family, root);
    if (!missing) return check_unknown(r);
    return mti_fail_bool(MT_ERR_FORMAT, MTI_ANY_FILE "\"%s\" is missing; a %s needs it", missing,
                         r->family->type);
}

/* ---- the whole ---- */

/* The text model of a model of more than text, whose file it may leave the head's weight to. */
static json_t *text_of(json_t *root, mti_hf_reader *r)
{
    static const char tied[] = "tie_word_embeddings";
    json_t *text = json_object_get(root, "text_config"), *above = json_object_get(root, tied);
    if (!json_is_object(text)) return root;
    if (above && !json_object_get(text, tied)) json_object_set(text, tied, above);
    mti_hf_put(r->notes, r->n_notes,
               "text_config: the text model alone; nothing else is counted\n");
    return text;
}

/* By "model_type", of several such by the name of the first architecture, or by that name alone. */
static const mti_hf_family *find_family(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *made = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const char *name = type ? type : made, *last = "";
    const mti_hf_family *family, *found = NULL;
    char list[512] = "";
    for (size_t i = 0; (family = mti_hf_family_at(i)); i++) {
        const char *known = made && !type ? family->class : family->type;
        const bool is_it = name && !strcmp(name, known);
        if (is_it && (!found || (made && !strcmp(made, family->class)))) found = family;
        if (strcmp(known, last) != 0) mti_hf_put(list, sizeof list, "%s%s", i ? ", " : "", known);
        last = known;
    }
    if (found) return found;
    if (name)
        mti_fail(MT_ERR_UNSUPPORTED,
                 MTI_ANY_FILE
                 "the architecture \"%.60s\" is unknown; need one of %s. Of any "
                 "PyTorch module, memtape.torch.profile(model, batch) counts the bytes",
                 name, list);
    else
        mti_fail(MT_ERR_FORMAT,
                 MTI_ANY_FILE "neither \"model_type\" nor \"architectures\" says "
                              "what it is; need one of %s",
                 list);
    return NULL;
}

/* A file of BERT's family counts the rows before the first position's in the context. */
static bool finish_positions(mti_hf_reader *r)
{
    if (r->c.pad_token < 0) r->c.pad_token += r->c.vocab;
    const int64_t rows = r->c.context;
    if (r->c.kind == MT_MODEL_BERT) r->c.context -= r->c.position_offset;
    return r->c.context > 0 ||
           mti_fail_bool(MT_ERR_FORMAT,
                         MTI_ANY_FILE
                         "\"max_position_embeddings\" is %lld; need more than the %lld "
                         "of padding",
                         (long long)rows, (long long)r->c.position_offset);
}

/* Layers are local, and some not, by a list or by where the local ones begin. */
static bool finish_local(mti_hf_reader *r, const json_t *root)
{
    mt_model_config *c = &r->c;
    const bool from_some = mti_hf_find_key(r->family, "max_window_layers");
    if (c->window > c->context ||
        (from_some && !json_is_true(json_object_get(root, "use_sliding_window"))))
        c->window = 0;
    bool ok = !(c->window || c->local_theta > 0) || mti_hf_local_layers(c, root, from_some);
    if (!c->window && c->local_theta == 0) c->local_period = c->local_layers = 0;
    return ok;
}

static bool finish_scaling(mti_hf_reader *r, const json_t *root)
{
    bool known = true;
    if (!r->scaling || !mti_hf_scaling(&r->c, r->scaling_key, r->scaling, root, &known))
        return !r->scaling;
    if (!known)
        mti_hf_put(r->notes, r->n_notes,
                   "%s: other angles (%.40s), which are not modelled; the same bytes\n",
                   r->scaling_key, mti_hf_rope_type(r->scaling));
    return true;
}

static void finish_latent(mti_hf_reader *r)
{
    if (r->family->bit & DEEPSEEK2 && !r->grouped) r->c.expert_groups = r->c.expert_topk_groups = 0;
    if (r->c.expert_scale == 1) r->c.expert_scale = 0;
    const int64_t width = r->c.head_dim ? r->c.head_dim : r->c.hidden / r->c.heads;
    if (r->turned < 1) r->c.rope_dim = (int64_t)fmax((double)width * r->turned, 1); /* 1: refused */
    if (r->c.kv_rank) r->c.attention_scale /= sqrt((double)r->c.head_dim);
}

static mt_status from_root(json_t *root, mt_model_config *out, char *notes, size_t n_bytes)
{
    if (!json_is_object(root)) return mti_fail(MT_ERR_FORMAT, MTI_ANY_FILE "is not a JSON object");
    if (n_bytes) notes[0] = 0;
    mti_hf_reader r = {.notes = notes, .n_notes = n_bytes};
    r.root = root = text_of(root, &r);
    r.family = find_family(root);
    if (!r.family) return mt_last_status();
    r.c = r.family->config;
    r.turned = r.family->bit & GLM4 ? 0.5 : r.family->bit & NEOX ? 0.25 : 1;
    if (!read_keys(&r, root) || !finish_scaling(&r, root)) return mt_last_status();
    finish_latent(&r);
    if (!json_is_true(json_object_get(root, "output_router_logits"))) r.c.balance_loss = 0;
    if (!finish_local(&r, root) || !mti_hf_unturned(&r.c, root) || !finish_positions(&r))
        return mt_last_status();
    mt_status status = mt_model_config_check(&r.c);
    if (status != MT_OK) return status;
    if (*r.ignored) mti_hf_put(notes, n_bytes, "ignored: %s\n", r.ignored);
    *out = r.c;
    return MT_OK;
}

mt_status mt_model_config_from_hf(const char *json, mt_model_config *out, char *notes,
                                  size_t n_bytes)
{
    if (!json || !out || (n_bytes && !notes))
        return mti_fail(MT_ERR_ARGUMENT, MTI_ANY_FILE "the %s is NULL",
                        !json  ? "text"
                        : !out ? "result"
                               : "buffer for notes");
    json_t *root = mti_json_named("config.json", json, strlen(json));
    if (!root) return mt_last_status();
    mt_status status = from_root(root, out, notes, n_bytes);
    json_decref(root);
    return status;
}
