/* options.c: the command line: its words, and a command made of options. */
#include <string.h>
#include "options/option_table.h"

/* ---- words ---- */

/* An abbreviation is refused, too: what it stands for changes with the options that there are. */
static bool refuse_name(mti_options *o, const char *name)
{
    const char *names[MTI_OPTION_COUNT], *advice = mti_foreign_advice(o->verb, name);
    char begun[400] = "", verbs[MTI_VERBS_TEXT];
    size_t n = 0, length = strlen(name);
    unsigned others;
    const mti_option_row *elsewhere = mti_option_anywhere(name, &others);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!mti_takes(o->verb, r) || r->key) continue;
        names[n++] = r->name;
        if (!strncmp(r->name, name, length))
            mti_append(begun, sizeof begun, "%s--%s", *begun ? ", " : "", r->name);
    }
    const char *near = mti_nearest(names, n, name);
    if (advice) return mti_options_refuse(o, "--%s: %s", name, advice);
    if (!strcmp(name, "device"))
        return mti_options_refuse(
            o, "--device: unrecognized option: %s runs on meta, whatever the machine has",
            mti_verb_get(o->verb)->name);
    if (elsewhere)
        return mti_options_refuse(o, "--%s: unrecognized option; it is for %s%s%s%s", name,
                                  mti_verbs_text(others, verbs), elsewhere->key ? ", as " : "",
                                  elsewhere->key ? mti_key_typed(elsewhere->key) : "",
                                  elsewhere->key ? name : "");
    if (*begun)
        return mti_options_refuse(o, "--%s: unrecognized option; in full it may be %s", name,
                                  begun);
    return mti_options_refuse(o, "--%.60s: unrecognized option; %s%s%s", name,
                              near ? "did you mean --" : "--help all lists those that there are",
                              near ? near : "", near ? "?" : "");
}

/* Whether it is --device meta of a verb that runs on nothing else. */
static bool is_meta(const mti_options *o, const char *name, const char *value)
{
    return !strcmp(name, "device") && mti_runs_on_meta(o->verb) && value && !strcmp(value, "meta");
}

static bool read_operand(mti_options *o, const char *word)
{
    const bool model = mti_verb_takes_model(o->verb);
    o->help_all = o->help_all || (o->help && !strcmp(word, "all"));
    if (o->help) return true;
    if (o->verb == MTI_COMPARE && o->workload.name &&
        !MTI_PUSH(&o->compare.files, o->workload.name))
        return mti_options_refuse_as(o, "");
    if (model && o->workload.name && o->verb != MTI_COMPARE)
        return mti_options_refuse(o, "\"%.80s\": unexpected; MODEL is \"%.80s\" already", word,
                                  o->workload.name);
    if (!model && mti_option_find(o->verb, "data"))
        return mti_options_refuse(o, "\"%.80s\": unexpected; give --data %.80s", word, word);
    if (!model)
        return mti_options_refuse(o, "\"%.80s\": unexpected; this verb takes options only", word);
    return mti_model_read(o, word, &o->workload.name);
}

/* "name" or "name=value", whose value may be the next word. */
static bool read_name(mti_options *o, const char *word, char **argv, int *i)
{
    char name[64];
    const size_t n = strcspn(word, "=");
    const char *value = word[n] ? word + n + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    for (char *c = name; *c; c++) *c = *c == '_' ? '-' : *c;
    const char *meant = NULL;
    const mti_option_row *r = n < sizeof name ? mti_option_find(o->verb, name) : NULL;
    if (!r) r = mti_foreign_option(o->verb, name, &meant);
    if (!r && is_meta(o, name, value ? value : argv[*i + 1])) return *i += !value, true;
    const bool model =
        !r && o->verb != MTI_COMPARE && mti_verb_takes_model(o->verb) && mti_foreign_model(name);
    if (model && !value) value = argv[++*i];
    if (model && o->workload.name)
        return mti_options_refuse(o, "--%s: MODEL is \"%.80s\" already", name, o->workload.name);
    if (model && !value)
        return mti_options_refuse(o, "--%s: this option needs a value, MODEL", name);
    if (model) return read_operand(o, value);
    if (!r) return refuse_name(o, name);
    if (meant && !value) return mti_option_read(o, r, meant);
    if (!r->arg && value) return mti_options_refuse(o, "--%s: this option takes no value", name);
    if (r->arg && !value) value = argv[++*i];
    if (r->arg && !value)
        return mti_options_refuse(o, "--%s: this option needs a value, %s%s%s", name, r->arg,
                                  r->example ? ", for example " : "", r->example ? r->example : "");
    if (r->key) mti_keys_note(o, r, value);
    return mti_option_read(o, r, value);
}

/* "qv", or "b8", whose value may be the next word. */
static bool read_letters(mti_options *o, const char *word, char **argv, int *i)
{
    for (; *word; word++) {
        const mti_option_row *r = NULL;
        for (int id = 0; id < MTI_OPTION_COUNT; id++)
            if (mti_takes(o->verb, &mti_option_rows[id]) && mti_option_rows[id].letter == *word)
                r = &mti_option_rows[id];
        if (!r) return mti_options_refuse(o, "-%.1s: unrecognized option", word);
        if (!r->arg && !mti_option_read(o, r, NULL)) return false;
        if (!r->arg) continue;
        const char *value = word[1] ? word + 1 : argv[++*i];
        if (value) return mti_option_read(o, r, value);
        return mti_options_refuse(o, "-%c: this option needs a value, %s", *word, r->arg);
    }
    return true;
}

static bool read_words(mti_options *o, int argc, char **argv)
{
    bool options = true, ok = true;
    for (int i = 1; ok && i < argc; i++) {
        const char *word = argv[i];
        if (!options || *word != '-' || !word[1])
            ok = read_operand(o, word);
        else if (!strcmp(word, "--"))
            options = false;
        else if (word[1] == '-')
            ok = read_name(o, word + 2, argv, &i);
        else
            ok = read_letters(o, word + 1, argv, &i);
    }
    return ok;
}

bool mti_options_parse(mti_options *o, const mti_verb_rules *rules, mt_comm *world, int argc,
                       char **argv)
{
    mti_option_defaults(o, rules);
    o->world = world;
    o->argc = argc, o->argv = argv;
    if (!read_words(o, argc, argv)) return false;
    if (o->help || o->verb != MTI_SWEEP) return o->help || mti_options_complete(o);
    return mti_sweep_check(o);
}

void mti_options_free(mti_options *o)
{
    mti_words *const all[] = {&o->train.data,    &o->generate.prompts, &o->generate.stop,
                              &o->compare.files, &o->sweep.over,       &o->sweep.rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        mti_free(all[i]->at);
        *all[i] = (mti_words){0};
    }
}

/* ---- a command ---- */

/* As a shell takes it. */
static void print_word(FILE *out, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_./=+,:@%";
    if (*text && !text[strspn(text, plain)]) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (; *text; text++) fputs(*text == '\'' ? "'\\''" : (char[]){*text, 0}, out);
    fputc('\'', out);
}

/* Writes --recipe as it was given, with its keys; nothing without both. */
static void print_recipe(FILE *out, const mti_options *o, mti_verb verb)
{
    char value[MTI_VALUE_TEXT];
    const mti_option_row *recipe = &mti_option_rows[MTI_O_RECIPE];
    const bool given = mti_is_given(o, MTI_O_RECIPE) && o->recipe && mti_takes(verb, recipe);
    if (given) mti_print(out, " --recipe %s", mti_option_text(o, recipe, value));
    mti_keys_print(out, o, verb, MTI_KEY_RECIPE, given ? "" : " --recipe plain");
}

bool mti_options_command(const mti_options *o, mti_verb verb, char *buf, size_t n)
{
    char value[MTI_VALUE_TEXT];
    FILE *out = fmemopen(buf, n, "w");
    if (!out) return mti_fail_bool(MT_ERR_MEMORY, "host memory: none left to write a command");
    mti_print(out, "memtape %s ", mti_verb_get(verb)->name);
    print_word(out, o->workload.name);
    mti_keys_print(out, o, verb, MTI_KEY_MODEL, "");
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!mti_is_given(o, id) || !mti_takes(verb, r) || r->key || id == MTI_O_RECIPE) continue;
        mti_print(out, " --%s%s", r->name, r->arg ? " " : "");
        if (r->arg) print_word(out, mti_option_text(o, r, value));
    }
    print_recipe(out, o, verb);
    bool whole = fflush(out) == 0 && ftell(out) < (long)n;
    fclose(out);
    return whole || mti_fail_bool(MT_ERR_ARGUMENT,
                                  "the command `memtape %s` with these options is longer than %zu "
                                  "bytes",
                                  mti_verb_get(verb)->name, n);
}
