/* option_values.c: parsing the values of options, and their way into a configuration. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "backends/backend.h"
#include "cli/option_rows.h"

bool mti_options_refuse(mti_options *o, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    mti_vformat(o->error, sizeof o->error, fmt, args);
    va_end(args);
    mti_make_printable(o->error);
    return false;
}

bool mti_options_refuse_as(mti_options *o, const char *what)
{
    mti_options_refuse(o, "%s%s%.900s", what, *what ? ": " : "", mt_last_error());
    if (mt_last_status() != MT_ERR_MEMORY) mt_clear_error(); /* main asks: that is no misuse */
    return false;
}

static void *field_of(mti_options *o, const mti_option_row *r) { return (char *)o + r->at; }

/* ---- numbers ---- */

/* The factor of the letter after a number; 1 without a letter, 0 if it is unknown. */
static double suffix_factor(const char *letters, const double *factors, const char *end)
{
    const char *found = *end ? strchr(letters, *end) : NULL;
    if (!*end) return 1;
    return found && !end[1] ? factors[found - letters] : 0;
}

static bool read_int(mti_options *o, const mti_option_row *r, const char *arg)
{
    static const double decimal[] = {1e3, 1e3, 1e6}, binary[] = {1024, 1024, 1 << 20};
    char *end;
    errno = 0;
    long long value = strtoll(arg, &end, 10), factor = 0;
    if (end != arg && strchr("-0123456789", *arg))
        factor = (long long)suffix_factor("kKM", r->form == MTI_EXTENT ? binary : decimal, end);
    if (!factor || errno == ERANGE || __builtin_mul_overflow(value, factor, &value) ||
        (double)value < r->min || (double)value > r->max)
        return mti_options_refuse(o, "--%s: \"%.40s\" is not a whole number from %.0f to %.0f",
                                  r->name, arg, r->min, r->max);
    *(int64_t *)field_of(o, r) = value;
    return true;
}

static bool read_real(mti_options *o, const mti_option_row *r, const char *arg)
{
    char *end;
    double value = mti_strtod(arg, &end);
    bool number = end != arg && !*end && strchr("-.0123456789", *arg) && isfinite(value);
    bool below = r->id != MTI_O_DROPOUT || value < 1; /* 1 would divide by zero */
    if (!number || value < r->min || value > r->max || !below)
        return mti_options_refuse(o, "--%s: \"%.40s\" is not a number from %g to %s%g", r->name,
                                  arg, r->min, r->id == MTI_O_DROPOUT ? "below " : "", r->max);
    *(double *)field_of(o, r) = value;
    return true;
}

static bool read_scaled(mti_options *o, const mti_option_row *r, const char *arg)
{
    static const double factors[] = {1e3, 1e6, 1e9, 1e9, 1e12, 1e15};
    char *end;
    double value = mti_strtod(arg, &end);
    bool number = end != arg && strchr(".0123456789", *arg) && !strchr("xX", arg[1] ? arg[1] : ' ');
    value *= number ? suffix_factor("kMGBTP", factors, end) : 0;
    if (!(value >= r->min && value <= r->max))
        return mti_options_refuse(o,
                                  "--%s: \"%.40s\" is not a number from %g to %g, such as 300e9, "
                                  "300B, 312T",
                                  r->name, arg, r->min, r->max);
    *(double *)field_of(o, r) = value;
    return true;
}

#define LEAST_PAGE         4096
#define LEAST_WITHOUT_UNIT (1 << 20) /* smaller numbers lack a unit: 80 means 80 GiB */

static bool read_bytes(mti_options *o, const mti_option_row *r, const char *arg)
{
    uint64_t value;
    if (!mti_bytes_parse(arg, &value) || (double)value < r->min || (double)value > r->max)
        return mti_options_refuse(
            o, "--%s: \"%.40s\" is not bytes with a unit, such as 40GiB (or 40G), 1.5GB, 4096B",
            r->name, arg);
    if (value < LEAST_WITHOUT_UNIT && !arg[strspn(arg, "0123456789")])
        return mti_options_refuse(
            o,
            "--%s: \"%s\" alone is %s bytes; give a unit, such as %sGiB, %sMiB, or %sB if it "
            "is bytes",
            r->name, arg, arg, arg, arg, arg);
    if (r->id == MTI_O_GRANULE && value % LEAST_PAGE)
        return mti_options_refuse(o, "--%s: \"%s\" is not a multiple of %d bytes, a page", r->name,
                                  arg, LEAST_PAGE);
    *(size_t *)field_of(o, r) = value;
    return true;
}

/* ---- names ---- */

/* The name we use for a common synonym: "f16" for "fp16". */
static const char *canonical_name(const char *word)
{
    static const char *const pairs[][2] = {
        {"fp64", "f64"},   {"float64", "f64"}, {"fp32", "f32"},    {"float32", "f32"},
        {"fp16", "f16"},   {"float16", "f16"}, {"half", "f16"},    {"bfloat16", "bf16"},
        {"adam", "adamw"}, {"swish", "silu"},  {"rms", "rmsnorm"}, {"layer", "layernorm"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!strcmp(word, pairs[i][0])) return pairs[i][1];
    return word;
}

static bool refuse_value(mti_options *o, const mti_option_row *r)
{
    char what[40];
    snprintf(what, sizeof what, "--%s", r->name);
    return mti_options_refuse_as(o, what);
}

/* The index of the word among the names; -1 and o->error if it is none. */
static int choose(mti_options *o, const mti_option_row *r, const mti_choice *c, const char *word)
{
    char what[40];
    snprintf(what, sizeof what, "--%s", r->name);
    for (int k = 0; k < c->n; k++)
        if (!strcmp(c->names[k], canonical_name(word))) return k;
    int i = mti_choose(what, c->names, c->n, word);
    if (i < 0) mti_options_refuse_as(o, "");
    return i;
}

static bool read_choice(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    if (i >= 0) memcpy(field_of(o, r), &i, sizeof i);
    return i >= 0;
}

bool mti_read_dtype(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    return i >= 0 && mt_dtype_parse(r->choice->names[i], field_of(o, r));
}

bool mti_read_out_act(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    o->given_config.has_out_act = i > 0;
    return i == 0 || (i > 0 && mt_act_parse(r->choice->names[i], field_of(o, r)) == MT_OK);
}

bool mti_read_scratch(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    o->workload.device.scratch_of_cpu = i == 1;
    return i >= 0;
}

bool mti_read_device(mti_options *o, const mti_option_row *r, const char *arg)
{
    o->workload.device.kind = arg;
    return mti_backend_find(arg) || refuse_value(o, r);
}

bool mti_read_amp(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    o->workload.memory.amp = i > 0;
    return i == 0 || (i > 0 && mt_dtype_parse(r->choice->names[i], &o->workload.memory.amp_dtype));
}

/* ---- any option ---- */

static bool is_there(mti_options *o, const mti_option_row *r, const char *arg)
{
    return *arg || mti_options_refuse(o, "--%s: the argument is empty; give a %s", r->name, r->arg);
}

static bool read_text(mti_options *o, const mti_option_row *r, const char *arg)
{
    if (r->id != MTI_O_PROMPT && !is_there(o, r, arg)) return false;
    *(const char **)field_of(o, r) = arg;
    return true;
}

static bool add_to_list(mti_options *o, const mti_option_row *r, const char *arg)
{
    mti_words *words = field_of(o, r);
    if (!strcmp(r->arg, "PATH") && !is_there(o, r, arg)) return false;
    return MTI_PUSH(words, arg) || refuse_value(o, r);
}

bool mti_option_read(mti_options *o, const mti_option_row *r, const char *arg)
{
    o->given[r->id] = true;
    switch (r->form) {
    case MTI_FLAG: return *(bool *)field_of(o, r) = true;
    case MTI_INT:
    case MTI_EXTENT: return read_int(o, r, arg);
    case MTI_BYTES: return read_bytes(o, r, arg);
    case MTI_REAL: return read_real(o, r, arg);
    case MTI_SCALED: return read_scaled(o, r, arg);
    case MTI_CHOICE: return read_choice(o, r, arg);
    case MTI_OTHER: return r->read(o, r, arg);
    case MTI_LIST: return add_to_list(o, r, arg);
    case MTI_TEXT:
    default: return read_text(o, r, arg);
    }
}

void mti_option_override(mt_model_config *c, const mti_options *o, const mti_option_row *r)
{
    static const size_t sizes[] = {
        [MTI_FLAG] = sizeof(bool),   [MTI_INT] = sizeof(int64_t), [MTI_EXTENT] = sizeof(int64_t),
        [MTI_REAL] = sizeof(double), [MTI_CHOICE] = sizeof(int),  [MTI_OTHER] = sizeof(mt_dtype)};
    const size_t begin = offsetof(mti_options, given_config);
    if (r->at < begin || r->at >= begin + sizeof o->given_config) return;
    if (r->id == MTI_O_OUT_ACT) c->has_out_act = o->given_config.has_out_act;
    memcpy((char *)c + (r->at - begin), (const char *)o + r->at, sizes[r->form]);
}
