/* options.c: the table of options, and how they become a model configuration. */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "backends/backend.h"
#include "cli/options.h"

/* ---- verbs ---- */

static const mti_verb_info verbs[MTI_VERB_COUNT] = {
    [MTI_DEMO] = {"demo", "",
                  "train a tiny transformer on real text, then show where its memory went",
                  "Trains a small byte-level GPT on the given text (memtape's own sources and docs "
                  "if none is given) for about a minute, compares it with three baselines on text "
                  "it has not seen, and measures what its memory would be with other choices."},
    [MTI_TRAIN] = {"train", "", "train a byte-level GPT on any file",
                   "Trains a byte-level GPT on files or folders. Ctrl-C saves and stops; --resume "
                   "goes on from there, bit for bit."},
    [MTI_GENERATE] = {"generate", "", "write text with a trained model",
                      "Continues a prompt with a model that `memtape train --save` wrote."},
    [MTI_PROFILE] = {"profile", "MODEL", "one training step under the ledger: every saved byte",
                     "Runs one training step of MODEL (mlp, attention, block, gpt or a preset) on "
                     "random data and says which tensors the tape keeps for backward, who keeps "
                     "them, and how that adds up to what the allocator holds."},
    [MTI_EXPLAIN] = {"explain", "MODEL", "the tape op by op: what is saved and why",
                     "Runs the forward pass of MODEL (mlp, attention, block, gpt or a preset) and "
                     "walks through its tape, op by op."},
};

const mti_verb_info *mti_verb_get(mti_verb verb) { return &verbs[verb]; }

mti_verb mti_verb_find(const char *name)
{
    int v = 0;
    while (v < MTI_VERB_COUNT && strcmp(name, verbs[v].name)) v++;
    return (mti_verb)v;
}

/* ---- the table ---- */

typedef enum form { FLAG, INT, REAL, TEXT, CHOICE, LIST } form;

typedef struct row {
    mti_option id;
    int letter; /* of the short form, or 0 */
    const char *name, *arg;
    form form;
    size_t at;       /* offset of the field in mti_options */
    unsigned verbs;  /* those that take it */
    unsigned models; /* those for which it means something */
    double min, max; /* inclusive */
    const char *doc;
} row;

#define V(verb) (1u << MTI_##verb)
#define BUILDS  (V(TRAIN) | V(PROFILE) | V(EXPLAIN))
#define LOOKS   (V(PROFILE) | V(EXPLAIN))
#define RUNS    (V(DEMO) | V(TRAIN))
#define EVERY   ((1u << MTI_VERB_COUNT) - 1)

#define M(model) (1u << MT_MODEL_##model)
#define ANY      (M(GPT) | M(BLOCK) | M(ATTENTION) | M(MLP))
#define ATTENDS  (M(GPT) | M(BLOCK) | M(ATTENTION))
#define FEEDS    (M(GPT) | M(BLOCK) | M(MLP))

#define AT(field) offsetof(mti_options, field)
#define EXTENT    1, 1e12 /* of a dimension: products are checked apart */

static const row rows[] = {
    {MTI_O_MODEL_FILE, 'm', "model", "FILE", TEXT, AT(model_file), V(GENERATE), ANY, 0, 0,
     "the trained model, a .safetensors file of `memtape train`"},
    {MTI_O_PROMPT, 'p', "prompt", "TEXT", TEXT, AT(prompt), V(GENERATE), ANY, 0, 0,
     "the text to continue; without it, a new line"},
    {MTI_O_TOKENS, 'n', "tokens", "N", INT, AT(tokens), V(GENERATE), ANY, 0, 1e9,
     "bytes to write (default 256)"},
    {MTI_O_TEMPERATURE, 't', "temperature", "T", REAL, AT(temperature), V(GENERATE), ANY, 0, 100,
     "0 always takes the likeliest; default 0.8"},
    {MTI_O_TOP_K, 'k', "top-k", "K", INT, AT(top_k), V(GENERATE), ANY, 0, 256,
     "choose among the K likeliest only; 0, the default, among all"},

    {MTI_O_DATA, 0, "data", "PATH", LIST, AT(data), RUNS, ANY, 0, 0,
     "a file (demo: or a folder of text files); may be given several times"},
    {MTI_O_PRESET, 0, "preset", "NAME", TEXT, AT(preset), V(TRAIN), ANY, 0, 0,
     "the model to start from: tiny (default), small, ..., gpt2"},
    {MTI_O_STEPS, 0, "steps", "N", INT, AT(steps), RUNS, ANY, 1, 1e12,
     "optimizer steps (train: default 1000; demo: as many as fit the time)"},
    {MTI_O_SECONDS, 0, "seconds", "T", REAL, AT(seconds), V(DEMO), ANY, 1, 1e6,
     "time to spend, from start to end (default 60)"},
    {MTI_O_LR, 0, "lr", "R", REAL, AT(lr), V(TRAIN), ANY, 0, 1e3, "learning rate (default 1e-3)"},
    {MTI_O_MIN_LR, 0, "min-lr", "R", REAL, AT(min_lr), V(TRAIN), ANY, 0, 1e3,
     "where the cosine ends (default: a tenth of --lr)"},
    {MTI_O_WARMUP, 0, "warmup", "N", INT, AT(warmup), V(TRAIN), ANY, 0, 1e12,
     "steps of rising learning rate (default: a twentieth of --steps)"},
    {MTI_O_WEIGHT_DECAY, 0, "weight-decay", "R", REAL, AT(weight_decay), V(TRAIN), ANY, 0, 1e3,
     "of matrices (default 0.1)"},
    {MTI_O_CLIP, 0, "clip", "R", REAL, AT(clip), V(TRAIN), ANY, 0, 1e9,
     "bound on the gradient's norm (default 1; 0: none)"},
    {MTI_O_ACCUMULATE, 0, "accumulate", "N", INT, AT(accumulate), V(TRAIN), ANY, 1, 1e6,
     "batches whose gradients one step adds up (default 1)"},
    {MTI_O_VAL_FRACTION, 0, "val-fraction", "R", REAL, AT(val_fraction), V(TRAIN), ANY, 0, 0.9,
     "share of each file held out, at its end (default 0.1)"},
    {MTI_O_EVAL_EVERY, 0, "eval-every", "N", INT, AT(eval_every), V(TRAIN), ANY, 0, 1e12,
     "steps between looks at the held-out text (default 0: only at the end)"},
    {MTI_O_SAVE, 0, "save", "PATH", TEXT, AT(save), RUNS, ANY, 0, 0,
     "a file, or an existing folder for one file per save"},
    {MTI_O_SAVE_EVERY, 0, "save-every", "N", INT, AT(save_every), V(TRAIN), ANY, 0, 1e12,
     "steps between saves (default 0: only at the end)"},
    {MTI_O_RESUME, 0, "resume", "FILE", TEXT, AT(resume), V(TRAIN), ANY, 0, 0,
     "go on from a file that --save wrote; its options hold unless given again"},

    {MTI_O_BATCH, 'b', "batch", "N", INT, AT(batch), BUILDS, ANY, EXTENT, "sequences"},
    {MTI_O_SEQ, 's', "seq", "N", INT, AT(seq), BUILDS, ANY, EXTENT, "length of a sequence"},
    {MTI_O_HIDDEN, 'd', "hidden", "N", INT, AT(hidden), BUILDS, ANY, EXTENT, "width of the model"},
    {MTI_O_HEADS, 'a', "heads", "N", INT, AT(heads), BUILDS, ATTENDS, EXTENT,
     "attention heads; they divide --hidden"},
    {MTI_O_LAYERS, 'l', "layers", "N", INT, AT(layers), BUILDS, M(GPT), 1, 1e6, "blocks"},
    {MTI_O_VOCAB, 0, "vocab", "N", INT, AT(vocab), LOOKS, M(GPT), EXTENT, "tokens there are"},
    {MTI_O_FFN, 0, "ffn", "N", INT, AT(ffn), BUILDS, FEEDS, EXTENT,
     "width inside the MLP (default: four times --hidden)"},
    {MTI_O_ACT, 0, "act", "NAME", CHOICE, 0, BUILDS, FEEDS, 0, 0,
     "relu, leaky_relu, gelu (default), gelu_tanh, silu, tanh, sigmoid"},
    {MTI_O_INPLACE, 0, "inplace", NULL, FLAG, AT(inplace), BUILDS, FEEDS, 0, 0,
     "let relu or leaky_relu overwrite their input"},
    {MTI_O_NORM, 0, "norm", "PLACE", CHOICE, 0, BUILDS, M(GPT) | M(BLOCK), 0, 0,
     "pre (default) or post"},
    {MTI_O_DROPOUT, 0, "dropout", "P", REAL, AT(dropout), BUILDS, ANY, 0, 1,
     "probability, below 1 (default 0)"},
    {MTI_O_ATTENTION, 0, "attention", "FORM", CHOICE, 0, BUILDS, ATTENDS, 0, 0,
     "flash (default): by blocks; math: every intermediate visible"},
    {MTI_O_CAUSAL, 0, "causal", NULL, FLAG, AT(causal), LOOKS, ATTENDS, 0, 0,
     "no position sees a later one (a gpt is always causal)"},
    {MTI_O_DTYPE, 0, "dtype", "TYPE", CHOICE, 0, BUILDS, ANY, 0, 0,
     "f32 (default), bf16, f16 or f64"},
    {MTI_O_OPTIMIZER, 0, "optimizer", "NAME", CHOICE, 0, V(PROFILE), ANY, 0, 0,
     "none (default), sgd or adamw"},

    {MTI_O_DEVICE, 0, "device", "KIND", CHOICE, 0, EVERY, ANY, 0, 0, "cpu"},
    {MTI_O_SEED, 0, "seed", "N", INT, AT(seed), EVERY, ANY, 0, 9e18,
     "of weights, data order and sampling (default 1)"},
    {MTI_O_THREADS, 0, "threads", "N", INT, AT(threads), EVERY, ANY, 1, 1024,
     "for the kernels (default: one per core)"},
    {MTI_O_JSON, 0, "json", "FILE", TEXT, AT(json), V(PROFILE), ANY, 0, 0,
     "write the result as one JSON object; - is standard output, and then no text"},
    {MTI_O_QUIET, 'q', "quiet", NULL, FLAG, AT(quiet), EVERY, ANY, 0, 0, "only results and errors"},
    {MTI_O_HELP, 'h', "help", NULL, FLAG, AT(help), EVERY, ANY, 0, 0, "this text"},
};

#define N_ROWS (sizeof rows / sizeof *rows)

static const row *row_of(mti_option id)
{
    size_t i = 0;
    while (rows[i].id != id) i++;
    return &rows[i];
}

bool mti_option_in_range(mti_option id, double value)
{
    const row *r = row_of(id);
    return value >= r->min && value <= r->max; /* false for NaN */
}

static int key_of(const row *r) { return r->letter ? r->letter : 0x100 + (int)r->id; }

/* The rows of one verb as argp wants them. */
static void argp_rows(mti_verb verb, struct argp_option out[N_ROWS + 1])
{
    size_t n = 0;
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!(rows[i].verbs & 1u << verb)) continue;
        out[n++] = (struct argp_option){
            .name = rows[i].name, .key = key_of(&rows[i]), .arg = rows[i].arg, .doc = rows[i].doc};
    }
    out[n] = (struct argp_option){0};
}

/* ---- values ---- */

static bool refuse(mti_options *o, const char *fmt, ...) MT_PRINTF(2, 3);
static bool refuse(mti_options *o, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(o->error, sizeof o->error, fmt, args);
    va_end(args);
    return false;
}

static bool parse_int(mti_options *o, const row *r, const char *arg)
{
    char *end;
    errno = 0;
    long long value = strtoll(arg, &end, 10);
    bool number = end != arg && !*end && (*arg == '-' || (*arg >= '0' && *arg <= '9'));
    if (!number || errno == ERANGE || (double)value < r->min || (double)value > r->max)
        return refuse(o, "--%s: \"%.40s\" is no good; give a whole number from %.0f to %.0f",
                      r->name, arg, r->min, r->max);
    *(int64_t *)((char *)o + r->at) = value;
    return true;
}

static bool parse_real(mti_options *o, const row *r, const char *arg)
{
    char *end;
    double value = strtod(arg, &end);
    bool number = end != arg && !*end && strchr("-.0123456789", *arg) && isfinite(value);
    bool below = r->id != MTI_O_DROPOUT || value < 1; /* 1 would divide by zero */
    if (!number || value < r->min || value > r->max || !below)
        return refuse(o, "--%s: \"%.40s\" is no good; give a number from %g to %s%g", r->name, arg,
                      r->min, r->id == MTI_O_DROPOUT ? "below " : "", r->max);
    *(double *)((char *)o + r->at) = value;
    return true;
}

/* The library's parsers list the good names themselves. */
static bool take_library_error(mti_options *o, const char *name)
{
    refuse(o, "--%s: %.900s", name, mt_last_error());
    mt_clear_error();
    return false;
}

static bool parse_choice(mti_options *o, const row *r, const char *arg)
{
    bool ok = false;
    switch (r->id) {
    case MTI_O_ACT: ok = mt_act_parse(arg, &o->act) == MT_OK; break;
    case MTI_O_NORM: ok = mt_norm_place_parse(arg, &o->norm) == MT_OK; break;
    case MTI_O_ATTENTION: ok = mt_attention_form_parse(arg, &o->attention) == MT_OK; break;
    case MTI_O_DTYPE:
        if (mt_dtype_parse(arg, &o->dtype) && mt_dtype_is_float(o->dtype)) return true;
        return refuse(o, "--dtype: \"%.40s\" is no good; give one of f32, bf16, f16, f64", arg);
    case MTI_O_OPTIMIZER:
        for (int i = MTI_OPT_NONE; i <= MTI_OPT_ADAMW; i++) {
            static const char *const names[] = {"none", "sgd", "adamw"};
            if (strcmp(arg, names[i])) continue;
            o->optimizer = (mti_optimizer_choice)i;
            return true;
        }
        return refuse(o, "--optimizer: \"%.40s\" is no good; give one of none, sgd, adamw", arg);
    default: /* MTI_O_DEVICE */
        o->device = arg;
        ok = mti_backend_find(arg) != NULL;
        break;
    }
    return ok || take_library_error(o, r->name);
}

static bool parse_value(mti_options *o, const row *r, char *arg)
{
    o->given[r->id] = true;
    switch (r->form) {
    case FLAG: *(bool *)((char *)o + r->at) = true; return true;
    case INT: return parse_int(o, r, arg);
    case REAL: return parse_real(o, r, arg);
    case CHOICE: return parse_choice(o, r, arg);
    case LIST: return MTI_PUSH(&o->data, arg) || refuse(o, "--%s: %s", r->name, mt_last_error());
    case TEXT:
    default:
        if (!*arg && r->id != MTI_O_PROMPT)
            return refuse(o, "--%s: the argument is empty; give a %s", r->name, r->arg);
        *(const char **)((char *)o + r->at) = arg;
        return true;
    }
}

static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    mti_options *o = state->input;
    bool model = *verbs[o->verb].args != 0;
    if (key == ARGP_KEY_ARG) {
        if (model && !o->model) {
            o->model = arg;
            return 0;
        }
        if (model)
            refuse(o, "\"%.80s\": one MODEL is enough, and it is \"%.80s\" already", arg, o->model);
        else
            refuse(o, "\"%.80s\": not an option, and nothing else is taken", arg);
        return EINVAL;
    }
    for (size_t i = 0; i < N_ROWS; i++)
        if (rows[i].verbs & 1u << o->verb && key == key_of(&rows[i]))
            return parse_value(o, &rows[i], arg) ? 0 : EINVAL;
    return ARGP_ERR_UNKNOWN;
}

/* ---- from options to a model ---- */

/* Defaults that let everything be seen at a glance. */
static const mt_model_config small_model = {.kind = MT_MODEL_GPT,
                                            .hidden = 64,
                                            .layers = 2,
                                            .vocab = 256,
                                            .act = MT_ACT_GELU,
                                            .dtype = MT_F32};

static int64_t default_heads(int64_t hidden)
{
    return hidden % 4 == 0 ? 4 : hidden % 2 == 0 ? 2 : 1;
}

static bool meaningful(mti_options *o, mt_model_kind kind)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!o->given[rows[i].id] || rows[i].models & 1u << kind) continue;
        char fit[64] = "";
        for (int k = 0; k < MT_MODEL_KIND_COUNT; k++)
            if (rows[i].models & 1u << k)
                snprintf(fit + strlen(fit), sizeof fit - strlen(fit), "%s%s", *fit ? ", " : "",
                         mt_model_kind_name((mt_model_kind)k));
        return refuse(o, "--%s: means nothing for %s; it is for %s", rows[i].name,
                      mt_model_kind_name(kind), fit);
    }
    return true;
}

/* Every tensor's bytes must be countable: the largest products, each checked. */
static bool sizes_fit(mti_options *o)
{
    const mt_model_config *c = &o->config;
    size_t e = mt_dtype_size(c->dtype), d = (size_t)c->hidden, tokens;
    size_t f = c->ffn ? (size_t)c->ffn : 4 * d, widest = f > 3 * d ? f : 3 * d;
    bool gpt = c->kind == MT_MODEL_GPT, math = c->attention == MT_ATTENTION_MATH;
    const size_t heads = c->heads > 0 ? (size_t)c->heads : 1;
    bool ok = mti_mul_size((size_t)o->batch, (size_t)o->seq, &tokens);
    const size_t products[][4] = {
        {tokens, widest, e, 2},
        {tokens, gpt ? (size_t)c->vocab : 1, e, 2},
        {widest, d, e, gpt && c->layers ? (size_t)c->layers : 1},
        {gpt ? (size_t)c->vocab : 1, d, e, 2},
        {tokens, math ? (size_t)o->seq : 1, math ? heads : 1, e},
    };
    for (size_t i = 0; ok && i < sizeof products / sizeof *products; i++) {
        size_t total = 1;
        for (int j = 0; ok && j < 4; j++) ok = mti_mul_size(total, products[i][j], &total);
        ok = ok && total <= PTRDIFF_MAX / 16;
    }
    if (ok) return true;
    return refuse(
        o,
        "the sizes overflow: batch %lld x seq %lld x hidden %lld is more than this machine "
        "can count bytes of; lower --batch, --seq, --hidden%s",
        (long long)o->batch, (long long)o->seq, (long long)c->hidden,
        gpt ? ", --layers or --vocab" : "");
}

bool mti_options_config(mti_options *o, const mt_model_config *base)
{
    mt_model_config c = *base;
    const bool *given = o->given;
    if (given[MTI_O_HIDDEN]) {
        if (c.hidden != o->hidden) c.heads = 0; /* the base's heads went with its width */
        c.hidden = o->hidden;
    }
    if (given[MTI_O_HEADS]) c.heads = o->heads;
    if (given[MTI_O_LAYERS]) c.layers = o->layers;
    if (given[MTI_O_VOCAB]) c.vocab = o->vocab;
    if (given[MTI_O_FFN]) c.ffn = o->ffn;
    if (given[MTI_O_ACT]) c.act = o->act;
    if (given[MTI_O_INPLACE]) c.inplace = o->inplace;
    if (given[MTI_O_NORM]) c.norm = o->norm;
    if (given[MTI_O_DROPOUT]) c.dropout = o->dropout;
    if (given[MTI_O_ATTENTION]) c.attention = o->attention;
    if (given[MTI_O_CAUSAL]) c.causal = o->causal;
    if (given[MTI_O_DTYPE]) c.dtype = o->dtype;
    bool attends = c.kind != MT_MODEL_MLP, gpt = c.kind == MT_MODEL_GPT;
    if (attends && c.heads == 0) c.heads = default_heads(c.hidden);
    if (gpt) {
        c.causal = true;
        if (c.context == 0) c.context = o->seq;
    }
    o->config = c;
    if (!meaningful(o, c.kind) || !sizes_fit(o)) return false;
    if (gpt && o->seq > c.context)
        return refuse(o, "--seq %lld is longer than the model's context, %lld", (long long)o->seq,
                      (long long)c.context);
    if (attends && c.hidden % c.heads)
        return refuse(o,
                      "--hidden %lld is not a multiple of --heads %lld; the heads share it evenly",
                      (long long)c.hidden, (long long)c.heads);
    if (c.inplace && c.act != MT_ACT_RELU && c.act != MT_ACT_LEAKY_RELU)
        return refuse(o,
                      "--inplace: %s needs its input again in backward; only relu and leaky_relu "
                      "can overwrite it",
                      mt_act_name(c.act));
    if (mt_model_config_check(&c) == MT_OK) return true;
    refuse(o, "%.1000s", mt_last_error());
    mt_clear_error();
    return false;
}

/* MODEL is a kind or a preset. */
static bool base_model(mti_options *o, const char *name, mt_model_config *base)
{
    *base = small_model;
    if (o->verb != MTI_TRAIN && mt_model_kind_parse(name, &base->kind) == MT_OK) {
        if (base->kind != MT_MODEL_GPT) base->layers = base->vocab = 0;
        return true;
    }
    mt_clear_error();
    if (mt_model_preset(name, base) == MT_OK) {
        o->preset = name;
        return true;
    }
    mt_clear_error();
    char list[256] = "";
    for (int k = 0; o->verb != MTI_TRAIN && k < MT_MODEL_KIND_COUNT; k++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s, ",
                 mt_model_kind_name((mt_model_kind)k));
    for (size_t i = 0; mt_model_preset_name(i); i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 mt_model_preset_name(i));
    return refuse(o, "%s: \"%.80s\" is no good; give one of %s",
                  o->verb == MTI_TRAIN ? "--preset" : "MODEL", name, list);
}

/* What is still missing once all options are read. */
static bool complete(mti_options *o)
{
    if (o->verb == MTI_GENERATE && !o->model_file)
        return refuse(o, "--model is missing; give a file that `memtape train --save` wrote");
    if (o->verb == MTI_TRAIN && o->data.n == 0)
        return refuse(o, "--data is missing; give a file to learn from");
    if (o->verb == MTI_TRAIN && o->given[MTI_O_SAVE_EVERY] && !o->save)
        return refuse(o, "--save-every needs --save: where to?");
    if (*verbs[o->verb].args && !o->model)
        return refuse(o, "MODEL is missing; give mlp, attention, block, gpt or a preset");
    if (o->verb == MTI_TRAIN && o->resume) return true; /* the model is in the file */
    if (!(BUILDS & 1u << o->verb)) return true;
    mt_model_config base;
    const char *name = o->verb != MTI_TRAIN ? o->model : o->preset ? o->preset : "tiny";
    if (!base_model(o, name, &base)) return false;
    if (o->verb == MTI_TRAIN) {
        base.vocab = 256; /* bytes */
        if (!o->given[MTI_O_SEQ]) o->seq = base.context;
        base.context = o->seq;
    }
    return mti_options_config(o, &base);
}

static void set_defaults(mti_options *o, mti_verb verb)
{
    bool train = verb == MTI_TRAIN;
    *o = (mti_options){.verb = verb,
                       .program = "memtape",
                       .batch = train ? 16 : 2,
                       .seq = train ? 128 : 32,
                       .device = "cpu",
                       .seed = 1,
                       .steps = 1000,
                       .seconds = 60,
                       .lr = 1e-3,
                       .weight_decay = 0.1,
                       .clip = 1,
                       .accumulate = 1,
                       .val_fraction = 0.1,
                       .prompt = "\n",
                       .tokens = 256,
                       .temperature = 0.8};
}

bool mti_options_parse(mti_options *o, mti_verb verb, int argc, char **argv, bool silent)
{
    set_defaults(o, verb);
    struct argp_option table[N_ROWS + 1];
    argp_rows(verb, table);
    const struct argp argp = {.options = table, .parser = parse_key};
    unsigned flags = ARGP_NO_EXIT | ARGP_NO_HELP | (silent ? ARGP_NO_ERRS : 0u);
    if (argp_parse(&argp, argc, argv, flags, NULL, o) != 0) return false;
    return o->help || complete(o);
}

void mti_options_free(mti_options *o)
{
    mti_free(o->data.at);
    o->data.at = NULL;
    o->data.n = o->data.cap = 0;
}

void mti_options_help(mti_verb verb, const char *name, FILE *out)
{
    const mti_verb_info *info = &verbs[verb];
    struct argp_option table[N_ROWS + 1];
    argp_rows(verb, table);
    const struct argp argp = {
        .options = table, .parser = parse_key, .args_doc = info->args, .doc = info->doc};
    char *copy = mti_strdup(name); /* argp's prototype is not const */
    if (copy) argp_help(&argp, out, ARGP_HELP_USAGE | ARGP_HELP_PRE_DOC | ARGP_HELP_LONG, copy);
    mti_free(copy);
}
