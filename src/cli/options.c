/* options.c: from words to values. */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "backends/backend.h"
#include "cli/option_rows.h"
#include "cli/sweep_rows.h"

#define MAX_ROWS 96

/* ---- values ---- */

bool mti_options_refuse(mti_options *o, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(o->error, sizeof o->error, fmt, args);
    va_end(args);
    return false;
}

static bool parse_int(mti_options *o, const mti_option_row *r, const char *arg)
{
    char *end;
    errno = 0;
    long long value = strtoll(arg, &end, 10);
    bool number = end != arg && !*end && (*arg == '-' || (*arg >= '0' && *arg <= '9'));
    if (!number || errno == ERANGE || (double)value < r->min || (double)value > r->max)
        return mti_options_refuse(
            o, "--%s: \"%.40s\" is no good; give a whole number from %.0f to %.0f", r->name, arg,
            r->min, r->max);
    *(int64_t *)((char *)o + r->at) = value;
    return true;
}

static bool parse_real(mti_options *o, const mti_option_row *r, const char *arg)
{
    char *end;
    double value = strtod(arg, &end);
    bool number = end != arg && !*end && strchr("-.0123456789", *arg) && isfinite(value);
    bool below = r->id != MTI_O_DROPOUT || value < 1; /* 1 would divide by zero */
    if (!number || value < r->min || value > r->max || !below)
        return mti_options_refuse(o, "--%s: \"%.40s\" is no good; give a number from %g to %s%g",
                                  r->name, arg, r->min, r->id == MTI_O_DROPOUT ? "below " : "",
                                  r->max);
    *(double *)((char *)o + r->at) = value;
    return true;
}

/* The library's parsers list the good names themselves. */
static bool take_library_error(mti_options *o, const char *name)
{
    mti_options_refuse(o, "--%s: %.900s", name, mt_last_error());
    mt_clear_error();
    return false;
}

static bool parse_choice(mti_options *o, const mti_option_row *r, const char *arg)
{
    bool ok = false;
    switch (r->id) {
    case MTI_O_ACT: ok = mt_act_parse(arg, &o->act) == MT_OK; break;
    case MTI_O_NORM: ok = mt_norm_place_parse(arg, &o->norm) == MT_OK; break;
    case MTI_O_NORM_KIND: ok = mt_norm_kind_parse(arg, &o->norm_kind) == MT_OK; break;
    case MTI_O_ATTENTION: ok = mt_attention_form_parse(arg, &o->attention) == MT_OK; break;
    case MTI_O_DTYPE:
        if (mt_dtype_parse(arg, &o->dtype) && mt_dtype_is_float(o->dtype)) return true;
        return mti_options_refuse(
            o, "--dtype: \"%.40s\" is no good; give one of f32, bf16, f16, f64", arg);
    case MTI_O_OPTIMIZER: return mti_option_choose(o, r, arg, "none, sgd, adamw", &o->optimizer);
    case MTI_O_KV_CACHE:
        return mti_option_choose(o, r, arg, "preallocated, growing, 8bit, none", &o->kv_cache);
    case MTI_O_CHECKPOINT: return mti_parse_checkpoint(o, arg);
    case MTI_O_OFFLOAD:
        return mti_option_choose(o, r, arg, "none, cpu, disk", &o->spending.offload);
    case MTI_O_COMPRESS: return mti_parse_compress(o, arg);
    case MTI_O_AMP: return mti_parse_amp(o, arg);
    case MTI_O_LOSS_SCALE: return mti_parse_loss_scale(o, arg);
    case MTI_O_SCRATCH: return mti_parse_scratch(o, arg);
    default: /* MTI_O_DEVICE */
        o->device = arg;
        ok = mti_backend_find(arg) != NULL;
        break;
    }
    return ok || take_library_error(o, r->name);
}

static bool push(mti_options *o, const mti_option_row *r, const char *arg)
{
    mti_words *words = (mti_words *)((char *)o + r->at);
    return MTI_PUSH(words, arg) || mti_options_refuse(o, "--%s: %s", r->name, mt_last_error());
}

static bool parse_value(mti_options *o, const mti_option_row *r, const char *arg)
{
    o->given[r->id] = true;
    switch (r->form) {
    case MTI_FLAG: *(bool *)((char *)o + r->at) = true; return true;
    case MTI_INT: return parse_int(o, r, arg);
    case MTI_BYTES: return mti_parse_bytes(o, r, arg);
    case MTI_REAL: return parse_real(o, r, arg);
    case MTI_SCALED: return mti_parse_scaled(o, r, arg);
    case MTI_CHOICE: return parse_choice(o, r, arg);
    case MTI_LIST: return push(o, r, arg);
    case MTI_TEXT:
    default:
        if (!*arg && r->id != MTI_O_PROMPT)
            return mti_options_refuse(o, "--%s: the argument is empty; give a %s", r->name, r->arg);
        *(const char **)((char *)o + r->at) = arg;
        return true;
    }
}

/* Options that make one row of a sweep differ from another. */
static bool may_vary(const mti_option_row *r)
{
    static const mti_option fixed[] = {MTI_O_OVER, MTI_O_ROW,  MTI_O_SVG,
                                       MTI_O_JSON, MTI_O_HELP, MTI_O_QUIET};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (r->id == fixed[i]) return false;
    return true;
}

bool mti_options_set(mti_options *o, const char *name, const char *value)
{
    const mti_option_row *r = NULL;
    for (size_t i = 0; i < mti_n_option_rows; i++)
        if (!strcmp(mti_option_rows[i].name, name) && mti_option_rows[i].verbs >> o->verb & 1)
            r = &mti_option_rows[i];
    if (!strcmp(name, "model") && value) {
        o->model = value;
        return true;
    }
    if (!r || !may_vary(r))
        return mti_options_refuse(o, "--%.40s: nothing that a row could differ in", name);
    if (r->form != MTI_FLAG) {
        if (value) return parse_value(o, r, value);
        return mti_options_refuse(o, "--%s: needs a value, %s", r->name, r->arg);
    }
    bool yes = !value || !strcmp(value, "yes");
    if (!yes && strcmp(value, "no") != 0)
        return mti_options_refuse(o, "--%s: \"%.40s\" is no good; give yes or no", r->name, value);
    o->given[r->id] = yes;
    *(bool *)((char *)o + r->at) = yes;
    return true;
}

/* ---- argp ---- */

static int key_of(const mti_option_row *r) { return r->letter ? r->letter : 0x100 + (int)r->id; }

/* The rows of one verb as argp wants them. */
static void argp_rows(mti_verb verb, struct argp_option out[MAX_ROWS])
{
    size_t n = 0;
    for (size_t i = 0; i < mti_n_option_rows; i++) {
        if (!(mti_option_rows[i].verbs & 1u << verb)) continue;
        out[n++] = (struct argp_option){.name = mti_option_rows[i].name,
                                        .key = key_of(&mti_option_rows[i]),
                                        .arg = mti_option_rows[i].arg,
                                        .doc = mti_option_rows[i].doc};
    }
    out[n] = (struct argp_option){0};
}

static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    mti_options *o = state->input;
    bool model = *mti_verb_get(o->verb)->args != 0;
    if (key == ARGP_KEY_ARG) {
        if (model && !o->model) {
            o->model = arg;
            return 0;
        }
        if (model)
            mti_options_refuse(o, "\"%.80s\": one %s is enough, and it is \"%.80s\" already", arg,
                               o->verb == MTI_AUDIT ? "OP" : "MODEL", o->model);
        else
            mti_options_refuse(o, "\"%.80s\": not an option, and nothing else is taken", arg);
        return EINVAL;
    }
    for (size_t i = 0; i < mti_n_option_rows; i++)
        if (mti_option_rows[i].verbs & 1u << o->verb && key == key_of(&mti_option_rows[i]))
            return parse_value(o, &mti_option_rows[i], arg) ? 0 : EINVAL;
    return ARGP_ERR_UNKNOWN;
}

static void set_defaults(mti_options *o, mti_verb verb)
{
    bool train = verb == MTI_TRAIN;
    *o = (mti_options){.verb = verb,
                       .program = "memtape",
                       .batch = train              ? 16
                                : verb == MTI_PLAN ? 1
                                                   : 2,
                       .seq = train ? 128 : 32,
                       .device = verb == MTI_PLAN ? "meta" : "cpu",
                       .optimizer = verb == MTI_PLAN ? MTI_OPT_ADAMW : MTI_OPT_NONE,
                       .plan = {.utilisation = 1, .devices = 1},
                       .seed = 1,
                       .steps = verb == MTI_SWEEP ? 5 : 1000,
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

/* argp says nothing of it. */
static bool ran_out(mti_options *o)
{
    mti_fail(MT_ERR_MEMORY, "host memory: none to read the options with");
    return mti_options_refuse(o, "%s", mt_last_error());
}

bool mti_options_parse(mti_options *o, mti_verb verb, int argc, char **argv, bool silent)
{
    set_defaults(o, verb);
    struct argp_option table[MAX_ROWS];
    argp_rows(verb, table);
    const struct argp argp = {.options = table, .parser = parse_key};
    unsigned flags = ARGP_NO_EXIT | ARGP_NO_HELP | (silent ? ARGP_NO_ERRS : 0u);
    error_t status = argp_parse(&argp, argc, argv, flags, NULL, o);
    if (status == ENOMEM) return ran_out(o);
    if (status != 0) return false;
    if (o->help || verb != MTI_SWEEP) return o->help || mti_options_complete(o);
    return mti_sweep_check(o);
}

static void words_free(mti_words *words)
{
    mti_free(words->at);
    *words = (mti_words){0};
}

void mti_options_free(mti_options *o)
{
    words_free(&o->data);
    words_free(&o->over);
    words_free(&o->rows);
}

void mti_options_help(mti_verb verb, const char *name, FILE *out)
{
    const mti_verb_info *info = mti_verb_get(verb);
    struct argp_option table[MAX_ROWS];
    argp_rows(verb, table);
    const struct argp argp = {
        .options = table, .parser = parse_key, .args_doc = info->args, .doc = info->doc};
    char *copy = mti_strdup(name); /* argp's prototype is not const */
    if (copy) argp_help(&argp, out, ARGP_HELP_USAGE | ARGP_HELP_PRE_DOC | ARGP_HELP_LONG, copy);
    mti_free(copy);
}
