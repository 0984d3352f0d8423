/* details.c: details of a value, which follow it after a colon: "gpt:untied,norm-kind=rmsnorm",
 * "plain:swiglu=unfused", "adamw:clip=1", "h100:price=2". */
#include <string.h>
#include <unistd.h>
#include "options/option_table.h"

static const struct {
    const char *name, *owner, *typed, *example;
} owners[MTI_KEY_OWNERS] = {
    [MTI_KEY_MODEL] = {"model", "MODEL", "MODEL:", "gpt:untied,norm-kind=rmsnorm"},
    [MTI_KEY_RECIPE] = {"recipe", "--recipe",
                        "--recipe plain:", "--recipe plain:swiglu=unfused,rope=unfused"},
    [MTI_KEY_OPTIMIZER] = {"optimizer", "--optimizer",
                           "--optimizer NAME:", "--optimizer adamw:clip=1,warmup=100"},
    [MTI_KEY_GPU] = {"gpu", "--gpu", "--gpu NAME:", "--gpu h100:price=2.5"},
};

const char *mti_key_name(mti_key_of owner) { return owners[owner].name; }
const char *mti_key_example(mti_key_of owner) { return owners[owner].example; }

const char *mti_key_owner(const mti_options *o, mti_key_of owner)
{
    return owner == MTI_KEY_MODEL && o->verb == MTI_TRAIN ? "--preset" : owners[owner].owner;
}

/* ---- reading ---- */

static bool refuse_key(mti_options *o, mti_key_of owner, const char *name)
{
    const char *names[MTI_OPTION_COUNT], *of = mti_key_owner(o, owner);
    const mti_option_row *r = mti_option_find(o->verb, name);
    size_t n = 0;
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (mti_option_rows[id].key == owner && mti_takes(o->verb, &mti_option_rows[id]))
            names[n++] = mti_option_rows[id].name;
    const char *near = mti_nearest(names, n, name);
    char word[24];
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

bool mti_keys_read(mti_options *o, mti_key_of owner, const char *text)
{
    for (size_t n = 0; *text; text += n) {
        text++;
        n = strcspn(text, ",");
        if (!read_key(o, owner, text, n)) return false;
    }
    return true;
}

bool mti_keys_split(mti_options *o, mti_key_of owner, const char *word, const char *colon,
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
           mti_keys_read(o, owner, colon);
}

bool mti_model_read(mti_options *o, const char *word, const char **name)
{
    const char *colon = access(word, F_OK) ? strchr(word, ':') : NULL;
    char key[64];
    if (colon) { /* that of "qwen2.5:7b" begins no keys */
        const size_t n = strcspn(colon + 1, "=,");
        snprintf(key, sizeof key, "%.*s", (int)n, colon + 1);
        if (colon[1 + n] != '=' && !mti_option_find(o->verb, key)) colon = NULL;
    }
    return mti_keys_split(o, MTI_KEY_MODEL, word, colon, name);
}

/* ---- writing ---- */

void mti_key_in_words(const mti_options *o, char *text, size_t size)
{
    const size_t n = strspn(text, "-abcdefghijklmnopqrstuvwxyz0123456789");
    char rest[1024];
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!r->key || strlen(r->name) + 2 != n || strncmp(text + 2, r->name, n - 2) != 0) continue;
        const size_t word = text[n] == ' ' ? strcspn(text + n + 1, " ") : 0;
        const bool value = word && text[n + word] == ':';
        const bool preset = r->key == MTI_KEY_MODEL && o->verb == MTI_TRAIN;
        snprintf(rest, sizeof rest, "%s", text + n + value);
        mti_format(text, size, "%s%s%s%s", preset ? "--preset NAME:" : owners[r->key].typed,
                   r->name, value ? "=" : "", rest);
        return;
    }
}

void mti_keys_note(mti_options *o, const mti_option_row *r, const char *value)
{
    char *text = o->former[r->key];
    mti_append(text, sizeof *o->former, "%s%s%s%s", *text ? "," : "", r->name, value ? "=" : "",
               value ? value : "");
}

void mti_keys_tell(const mti_options *o, FILE *out)
{
    const char *const names[MTI_KEY_OWNERS] = {
        [MTI_KEY_MODEL] = o->verb == MTI_TRAIN ? o->workload.preset : o->workload.name,
        [MTI_KEY_RECIPE] = "plain",
        [MTI_KEY_OPTIMIZER] = mti_optimizer_name(o->workload.optimizer),
        [MTI_KEY_GPU] = o->fit.gpu};
    for (int k = MTI_KEY_MODEL; k < MTI_KEY_OWNERS; k++) {
        const char *of = mti_key_owner(o, (mti_key_of)k);
        if (*o->former[k])
            mti_print(out, "memtape: options that are keys of %s now: %s%s%s:%s\n", of,
                      *of == '-' ? of : "", *of == '-' ? " " : "", names[k] ? names[k] : "NAME",
                      o->former[k]);
    }
}

bool mti_keys_print(FILE *out, const mti_options *o, mti_verb verb, mti_key_of owner,
                    const char *before)
{
    char value[MTI_VALUE_TEXT];
    bool any = false;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (r->key != owner || !o->given[id] || !mti_takes(verb, r)) continue;
        mti_print(out, "%s%s%s%s%s", any ? "" : before, any ? "," : ":", r->name, r->arg ? "=" : "",
                  r->arg ? mti_option_text(o, r, value) : "");
        any = true;
    }
    return any;
}
