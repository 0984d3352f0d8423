/* values.c: parsing the values of options, their keys among them, and their way into a
 * configuration.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "backends/backend.h"
#include "workload/routing.h"
#include "options/option_table.h"
#include "nn/model.h"

bool mti_options_refuse(mti_options *o, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    mti_vformat(o->error, sizeof o->error, fmt, args);
    va_end(args);
    if (!strncmp(o->error, "--", 2)) mti_key_in_words(o, o->error, sizeof o->error);
    mti_make_printable(o->error);
    return false;
}

/* The given option whose field the message begins with: "config: expert_form is loop". */
static const mti_option_row *named_in(const mti_options *o, const char *message)
{
    const char *word = strstr(message, ": ");
    const size_t n = word ? strcspn(word + 2, " ") : 0;
    for (int id = 0; n && id < MTI_OPTION_COUNT; id++) {
        const char *field = strrchr(mti_option_rows[id].field, '.');
        if (mti_is_given(o, id) && field && strlen(field + 1) == n &&
            !strncmp(field + 1, word + 2, n))
            return &mti_option_rows[id];
    }
    return NULL;
}

bool mti_options_refuse_as(mti_options *o, const char *what)
{
    const mti_option_row *r = *what ? NULL : named_in(o, mt_last_error());
    mti_options_refuse(o, "%s%s%s%.900s", r ? "--" : "", r ? r->name : what, r || *what ? ": " : "",
                       mt_last_error());
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
    if (value && value < LEAST_WITHOUT_UNIT && !arg[strspn(arg, "0123456789")])
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

/* ---- details after a colon ---- */

static bool refuse_key(mti_options *o, mti_key_of owner, const char *name)
{
    const char *names[MTI_OPTION_COUNT], *of = mti_key_owner(o, owner);
    const mti_option_row *r = mti_option_find(o->verb, name);
    size_t n = 0;
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (mti_option_rows[id].key == owner && mti_takes(o->verb, &mti_option_rows[id]))
            names[n++] = mti_option_rows[id].name;
    const char *near = mti_nearest(names, n, name);
    char word[24], verbs[MTI_VERBS_TEXT];
    unsigned others;
    const mti_option_row *elsewhere = mti_option_anywhere(name, &others);
    if (!r && elsewhere && elsewhere->key == owner)
        return mti_options_refuse(o, "%s: \"%.40s\" is a key for %s", of, name,
                                  mti_verbs_text(others, verbs));
    const char *instead = r || owner != MTI_KEY_RECIPE ? NULL : mti_foreign_recipe(name, word);
    if (instead) return mti_options_refuse(o, "--recipe: %s is no key; %s", word, instead);
    if (r && r->key)
        return mti_options_refuse(o, "%s: \"%.40s\" is a key of %s", of, name,
                                  mti_key_owner(o, r->key));
    if (r)
        return mti_options_refuse(o, "%s: \"%.40s\" is no key of it but an option: --%s", of, name,
                                  r->name);
    return mti_options_refuse(o, "%s: \"%.40s\" is not a key; %s%s%s", of, name,
                              near                      ? "did you mean "
                              : owner == MTI_KEY_RECIPE ? "`memtape help recipes` lists the keys"
                                                        : "--help all lists the keys",
                              near ? near : "", near ? "?" : "");
}

/* "swiglu=unfused", or a flag's name, of n characters. */
static bool read_key(mti_options *o, mti_key_of owner, const char *text, size_t n)
{
    char name[240];
    const char *of = mti_key_owner(o, owner);
    if (n >= sizeof name)
        return mti_options_refuse(o, "%s: \"%.40s...\" is longer than a key and its value are", of,
                                  text);
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    char *value = strchr(name, '=');
    if (value) *value++ = 0;
    const mti_option_row *r = mti_option_find(o->verb, name);
    if (!r || r->key != owner) return refuse_key(o, owner, name);
    if (!r->arg != !value && !(value && (!strcmp(value, "yes") || !strcmp(value, "no"))))
        return mti_options_refuse(o, "%s: the key %s takes %s%s%s", of, name,
                                  r->arg ? "a value, " : "no value", r->arg ? name : "",
                                  r->arg ? "=..." : "");
    const char *kept = value ? mti_intern(value) : NULL; /* texts are borrowed */
    return (!value || kept || mti_options_refuse_as(o, of)) && mti_option_read(o, r, kept);
}

/* Reads an owner's keys, ":untied,norm-kind=rmsnorm", or nothing. */
static bool read_keys(mti_options *o, mti_key_of owner, const char *text)
{
    for (size_t n = 0; *text; text += n) {
        text++;
        n = strcspn(text, ",");
        if (!read_key(o, owner, text, n)) return false;
    }
    return true;
}

/* The same of a word's end from its colon on; NULL: it has none. *name: what stands before. */
static bool split_keys(mti_options *o, mti_key_of owner, const char *word, const char *colon,
                       const char **name)
{
    char before[1024];
    *name = word;
    if (!colon) return true;
    if ((size_t)(colon - word) >= sizeof before)
        return mti_options_refuse(o, "%s: \"%.40s...\" is longer than any name",
                                  mti_key_owner(o, owner), word);
    snprintf(before, sizeof before, "%.*s", (int)(colon - word), word);
    *name = mti_intern(before);
    return (*name || mti_options_refuse_as(o, mti_key_owner(o, owner))) &&
           read_keys(o, owner, colon);
}

bool mti_model_read(mti_options *o, const char *word, const char **name)
{
    const char *colon = access(word, F_OK) ? strchr(word, ':') : NULL;
    char key[64];
    unsigned takers;
    if (colon) { /* that of "qwen2.5:7b" begins no keys */
        const size_t n = strcspn(colon + 1, "=,");
        snprintf(key, sizeof key, "%.*s", (int)n, colon + 1);
        if (colon[1 + n] != '=' && !mti_option_anywhere(key, &takers)) colon = NULL;
    }
    return split_keys(o, MTI_KEY_MODEL, word, colon, name);
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
    int i = mti_find_word(c->names, c->n, word);
    if (i < 0) i = mti_choose(what, c->names, c->n, word);
    if (i < 0) mti_options_refuse_as(o, "");
    return i;
}

static bool read_choice(mti_options *o, const mti_option_row *r, const char *arg)
{
    const char *keys = r->id == MTI_O_OPTIMIZER ? strchr(arg, ':') : NULL;
    if (!split_keys(o, MTI_KEY_OPTIMIZER, arg, keys, &arg)) return false;
    int i = choose(o, r, r->choice, arg);
    if (i >= 0) memcpy(field_of(o, r), &i, sizeof i);
    return i >= 0;
}

/* ---- some of several names ---- */

unsigned mti_option_bits(const mti_option_row *r, int i)
{
    return r->bits ? r->bits[i] : i ? 1u << (i - 1) : 0;
}

/* "bits+seed" */
static bool read_some(mti_options *o, const mti_option_row *r, const char *arg)
{
    unsigned *field = field_of(o, r);
    char word[40];
    *field = 0;
    for (const char *at = arg; at;) {
        size_t n = strcspn(at, "+");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        int i = choose(o, r, r->choice, word);
        if (i < 0) {
            mti_append(o->error, sizeof o->error, "; several are joined by +");
            return false;
        }
        *field |= mti_option_bits(r, i);
        at = at[n] ? at + n + 1 : NULL;
    }
    return true;
}

/* "trl+fsdp2:reshard=never,rs-buffers=2"; "plain:..." adds keys to what was given before. */
static bool read_recipe(mti_options *o, const mti_option_row *r, const char *arg)
{
    char names[160];
    size_t n = strcspn(arg, ":");
    const bool none = n == 4 && !strncmp(arg, "none", n);
    if (n >= sizeof names)
        return mti_options_refuse(o, "--recipe: \"%.40s...\" is longer than all names are", arg);
    snprintf(names, sizeof names, "%.*s", none ? 5 : (int)n, none ? "plain" : arg);
    const bool adds = arg[n] && !strcmp(names, "plain");
    char word[24];
    const char *instead = mti_foreign_recipe(names, word);
    if (instead) return mti_options_refuse(o, "--recipe: %s is none; %s", word, instead);
    if (!adds && !read_some(o, r, names)) return false;
    return read_keys(o, MTI_KEY_RECIPE, arg + n);
}

static bool read_dtype(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    return i >= 0 && mt_dtype_parse(r->choice->names[i], field_of(o, r));
}

static bool read_out_act(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    o->workload.config.has_out_act = i > 0;
    return i == 0 || (i > 0 && mt_act_parse(r->choice->names[i], field_of(o, r)) == MT_OK);
}

static bool read_scratch(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    o->workload.device.scratch_of = i == 1 ? "cpu" : NULL;
    return i >= 0;
}

static bool read_device(mti_options *o, const mti_option_row *r, const char *arg)
{
    o->workload.device.kind = arg;
    return mti_backend_find(arg) || refuse_value(o, r);
}

static bool read_amp(mti_options *o, const mti_option_row *r, const char *arg)
{
    int i = choose(o, r, r->choice, arg);
    o->workload.memory.amp = i > 0;
    return i == 0 || (i > 0 && mt_dtype_parse(r->choice->names[i], &o->workload.memory.amp_dtype));
}

/* ---- memory options ---- */

static bool read_checkpoint(mti_options *o, const mti_option_row *r, const char *arg)
{
    const mti_choice *c = r->choice; /* the last of them is every=K */
    mti_preset preset = {MTI_PRESET_NONE};
    const int word = mti_find_word(c->names, c->n - 1, arg);
    if (word >= 0) arg = c->names[word];
    bool known = mti_preset_parse(arg, &preset);
    o->workload.memory.checkpoint = known && preset.form == MTI_PRESET_NONE ? NULL : arg;
    if (known) return true;
    if (!strncmp(arg, "every=", 6))
        return mti_options_refuse(o, "--%s: \"%.40s\": the K of every=K is a whole number from 1",
                                  r->name, arg);
    return mti_choose("--checkpoint", c->names, c->n, arg) >= 0 || mti_options_refuse_as(o, "");
}

static bool read_lora_targets(mti_options *o, const mti_option_row *r, const char *arg)
{
    return mti_lora_targets_parse(&o->workload.memory.lora_targets, arg) || refuse_value(o, r);
}

static bool read_loss_scale(mti_options *o, const mti_option_row *r, const char *arg)
{
    char *end;
    double value = mti_strtod(arg, &end);
    bool number = end != arg && !*end && strchr("0123456789.", *arg) && isfinite(value);
    if (!strcmp(arg, "none"))
        o->workload.memory.loss_scale = 0;
    else if (!strcmp(arg, "dynamic"))
        o->workload.memory.loss_scale = -1;
    else if (number && value >= 1 && value <= 0x1p40)
        o->workload.memory.loss_scale = value;
    else
        return mti_options_refuse(
            o, "--%s: unknown \"%.40s\"; choose none, dynamic or a number from 1 to 2^40", r->name,
            arg);
    return true;
}

static bool read_reshard(mti_options *o, const mti_option_row *r, const char *arg)
{
    int64_t *field = field_of(o, r);
    char *end;
    const long long n = strtoll(arg, &end, 10);
    for (int i = 0; i < r->choice->n; i++)
        if (!strcmp(arg, r->choice->names[i])) {
            *field = -i;
            return true;
        }
    if (end == arg || *end || n < 2 || n > 1000000)
        return mti_options_refuse(o,
                                  "--%s: unknown \"%.40s\"; choose default, always, never or a "
                                  "number of ranks from 2 to 1000000",
                                  r->name, arg);
    *field = n;
    return true;
}

/* ---- words ---- */

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

/* "small:untied" */
static bool read_preset(mti_options *o, const mti_option_row *r, const char *arg)
{
    return is_there(o, r, arg) && mti_model_read(o, arg, field_of(o, r));
}

/* "h100:price=2.5" */
static bool read_gpu(mti_options *o, const mti_option_row *r, const char *arg)
{
    return is_there(o, r, arg) && split_keys(o, MTI_KEY_GPU, arg, strchr(arg, ':'), field_of(o, r));
}

static bool read_routing(mti_options *o, const mti_option_row *r, const char *arg)
{
    mti_routing_kind kind;
    const char *file;
    if (!mti_routing_parse(arg, &kind, &file)) return refuse_value(o, r);
    *(const char **)field_of(o, r) = arg;
    return true;
}

static bool add_to_list(mti_options *o, const mti_option_row *r, const char *arg)
{
    mti_words *words = field_of(o, r);
    if (!strcmp(r->arg, "PATH") && !is_there(o, r, arg)) return false;
    return MTI_PUSH(words, arg) || refuse_value(o, r);
}

static bool read_flag(mti_options *o, const mti_option_row *r, const char *arg)
{
    bool yes = !arg || !strcmp(arg, "yes");
    if (!yes && strcmp(arg, "no") != 0)
        return mti_options_refuse(o, "--%s: \"%.40s\" is not yes or no", r->name, arg);
    *(bool *)field_of(o, r) = yes;
    if (!yes) o->chosen[r->id] = MTI_BY_NO;
    return true;
}

/* ---- any option ---- */

static const struct {
    bool (*read)(mti_options *o, const mti_option_row *r, const char *arg);
    size_t size; /* of the field */
} forms[MTI_FORM_COUNT] = {
    [MTI_FLAG] = {read_flag, sizeof(bool)},
    [MTI_INT] = {read_int, sizeof(int64_t)},
    [MTI_EXTENT] = {read_int, sizeof(int64_t)},
    [MTI_BYTES] = {read_bytes, sizeof(size_t)},
    [MTI_REAL] = {read_real, sizeof(double)},
    [MTI_SCALED] = {read_scaled, sizeof(double)},
    [MTI_TEXT] = {read_text, sizeof(char *)},
    [MTI_CHOICE] = {read_choice, sizeof(int)},
    [MTI_SOME] = {read_some, sizeof(unsigned)},
    [MTI_LIST] = {add_to_list, sizeof(mti_words)},
    [MTI_PRESET] = {read_preset, sizeof(char *)},
    [MTI_GPU] = {read_gpu, sizeof(char *)},
    [MTI_DTYPE] = {read_dtype, sizeof(mt_dtype)},
    [MTI_OUT_ACT] = {read_out_act, sizeof(mt_act)},
    [MTI_DEVICE] = {read_device, sizeof(char *)},
    [MTI_SCRATCH] = {read_scratch, sizeof(const char *)},
    [MTI_CHECKPOINT] = {read_checkpoint, sizeof(char *)},
    [MTI_AMP] = {read_amp, sizeof(bool)},
    [MTI_LOSS_SCALE] = {read_loss_scale, sizeof(double)},
    [MTI_RESHARD] = {read_reshard, sizeof(int64_t)},
    [MTI_ROUTING_TEXT] = {read_routing, sizeof(char *)},
    [MTI_TARGETS] = {read_lora_targets, sizeof(mti_lora_targets)},
    [MTI_RECIPE] = {read_recipe, sizeof(unsigned)},
};

bool mti_option_read(mti_options *o, const mti_option_row *r, const char *arg)
{
    o->chosen[r->id] = MTI_BY_WORD;
    return forms[r->form].read(o, r, arg);
}

bool mti_options_set(mti_options *o, const char *name, const char *value)
{
    const mti_option_row *r = mti_option_find(o->verb, name);
    if (!strcmp(name, "model") && value) return mti_model_read(o, value, &o->workload.name);
    if (!r || r->of_all_rows)
        return mti_options_refuse(o, "--%.40s: is not an option that rows may differ in", name);
    if (!value && r->arg) return mti_options_refuse(o, "--%s: needs a value, %s", r->name, r->arg);
    return mti_option_read(o, r, value);
}

/* Whether the field is one of the model's, which counts only if its option was given. */
static bool of_model(const mti_option_row *r)
{
    const size_t begin = offsetof(mti_options, workload.config);
    return r->at >= begin && r->at < begin + sizeof(mt_model_config);
}

const void *mti_option_field(const mti_options *o, const mti_option_row *r)
{
    return (const char *)o + r->at;
}

bool mti_option_is_set(const mti_options *o, const mti_option_row *r)
{
    const char *field = mti_option_field(o, r);
    for (size_t i = 0; i < forms[r->form].size; i++)
        if (field[i]) return true;
    return false;
}

void mti_options_override(mt_model_config *c, const mti_options *o)
{
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!of_model(r) || o->chosen[id] < MTI_BY_WORD) continue;
        if (r->form == MTI_OUT_ACT) c->has_out_act = o->workload.config.has_out_act;
        memcpy((char *)c + (r->at - offsetof(mti_options, workload.config)), mti_option_field(o, r),
               forms[r->form].size);
    }
}
