/* options.c: the command line, read by argp, and its help. */
#include <argp.h>
#include <errno.h>
#include <string.h>
#include "options/rows.h"
#include "options/sweep_rows.h"

#define MAX_ROWS (2 * MTI_OPTION_COUNT) /* options, aliases, headings and the end */

static int key_of(const mti_option_row *r) { return r->letter ? r->letter : 0x100 + (int)r->id; }

static const mti_option_row *row_of_key(mti_verb verb, int key)
{
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (mti_takes(verb, &mti_option_rows[id]) && key == key_of(&mti_option_rows[id]))
            return &mti_option_rows[id];
    return NULL;
}

/* ---- the verb's rows for argp ---- */

typedef struct rows {
    size_t n;
    struct argp_option at[MAX_ROWS];
} rows;

static void make_rows(mti_verb verb, rows *out)
{
    const char *heading = NULL;
    *out = (rows){0};
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (r->heading) heading = r->heading;
        if (!mti_takes(verb, r)) continue;
        if (heading) out->at[out->n++] = (struct argp_option){.doc = heading};
        heading = NULL; /* once */
        out->at[out->n++] =
            (struct argp_option){.name = r->name, .key = key_of(r), .arg = r->arg, .doc = r->doc};
        if (r->alias)
            out->at[out->n++] =
                (struct argp_option){.name = r->alias, .flags = OPTION_ALIAS | OPTION_HIDDEN};
    }
}

/* ---- parsing ---- */

static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    mti_options *o = state->input;
    bool model = *mti_verb_get(o->verb)->args != 0;
    if (key == ARGP_KEY_ARG) {
        if (model && !o->workload.name) {
            o->workload.name = arg;
            return 0;
        }
        if (model)
            mti_options_refuse(o, "\"%.80s\": unexpected; %s is \"%.80s\" already", arg,
                               o->verb == MTI_AUDIT ? "OP" : "MODEL", o->workload.name);
        else
            mti_options_refuse(o, "\"%.80s\": unexpected; this verb takes options only", arg);
        return EINVAL;
    }
    const mti_option_row *r = row_of_key(o->verb, key);
    if (!r) return ARGP_ERR_UNKNOWN;
    return mti_option_read(o, r, arg) ? 0 : EINVAL;
}

/* Lets argp say what is wrong with words that it has refused. getopt would print them as they are,
 * so it reads a copy, without what a terminal would obey. */
static void report_words(const struct argp *argp, const mti_verb_rules *rules, int argc,
                         char **argv)
{
    mti_options unused;
    char **words = mti_calloc((size_t)argc + 1, sizeof *words);
    bool ok = words != NULL;
    for (int i = 0; ok && i < argc; i++) {
        ok = (words[i] = mti_strdup(argv[i]));
        if (ok) mti_make_printable(words[i]);
    }
    mti_option_defaults(&unused, rules);
    if (ok) argp_parse(argp, argc, words, ARGP_NO_EXIT | ARGP_NO_HELP, NULL, &unused);
    mti_options_free(&unused);
    for (int i = 0; words && i < argc; i++) mti_free(words[i]);
    mti_free(words);
}

/* argp has reported an unknown option: suggests the one with the nearest name. */
static void suggest(mti_options *o, int argc, char **argv)
{
    const char *names[MAX_ROWS];
    size_t n = 0;
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (mti_takes(o->verb, &mti_option_rows[id])) names[n++] = mti_option_rows[id].name;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char word[64], verbs[MTI_VERBS_TEXT];
        bool known = strncmp(argv[i], "--", 2) != 0;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(argv[i], "="), argv[i]);
        unsigned others = 0;
        for (int id = 0; id < MTI_OPTION_COUNT && !known; id++)
            if (!strcmp(mti_option_rows[id].name, word + 2)) others |= mti_option_rows[id].verbs;
        if (others && !(others >> o->verb & 1)) {
            mti_options_refuse(o, "%s: is for %s", word, mti_verbs_text(others, verbs));
            return;
        }
        for (size_t k = 0; k < n && !known; k++)
            known = !strncmp(names[k], word + 2, strlen(word + 2));
        const char *near = known ? NULL : mti_nearest(names, n, word + 2);
        if (near) {
            mti_options_refuse(o, "did you mean --%s?", near);
            return;
        }
    }
}

static bool ran_out(mti_options *o)
{
    mti_fail(MT_ERR_MEMORY, "host memory: none left to read the options");
    return mti_options_refuse(o, "%s", mt_last_error());
}

bool mti_options_parse(mti_options *o, const mti_verb_rules *rules, mt_comm *world, int argc,
                       char **argv, bool silent)
{
    rows table;
    mti_option_defaults(o, rules);
    o->world = world;
    make_rows(rules->verb, &table);
    const struct argp argp = {.options = table.at, .parser = parse_key};
    const unsigned flags = ARGP_NO_EXIT | ARGP_NO_HELP | ARGP_NO_ERRS;
    error_t status = argp_parse(&argp, argc, argv, flags, NULL, o);
    if (status == ENOMEM) return ran_out(o);
    if (status != 0 && !*o->error) {
        if (!silent) report_words(&argp, rules, argc, argv);
        suggest(o, argc, argv);
    }
    if (status != 0) return false;
    if (o->help || o->verb != MTI_SWEEP) return o->help || mti_options_complete(o);
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

/* ---- help ---- */

#define LONGEST_DOC 400

static void append(char doc[LONGEST_DOC], const char *before, const char *text, const char *after)
{
    size_t n = strlen(doc);
    snprintf(doc + n, LONGEST_DOC - n, "%s%s%s", before, text, after);
}

static void write_doc(char doc[LONGEST_DOC], const mti_options *o, const mti_option_row *r)
{
    char buf[MTI_VALUE_TEXT];
    const char *value = mti_option_text(o, r, buf);
    const bool is_zero = r->form != MTI_CHOICE && (!strcmp(value, "0") || !strcmp(value, "0B"));
    append(doc, "", r->doc, "");
    for (int i = 0; r->choice && i < r->choice->n; i++)
        append(doc, i ? ", " : ": ", r->choice->names[i], "");
    if (r->arg && !is_zero && *value > ' ') append(doc, " (default ", value, ")");
}

void mti_options_help(const mti_verb_rules *rules, const char *name, FILE *out)
{
    const mti_verb verb = rules->verb;
    const mti_verb_info *info = mti_verb_get(verb);
    rows table;
    mti_options defaults;
    mti_option_defaults(&defaults, rules);
    defaults.workload.config = defaults.given_config;
    make_rows(verb, &table);
    char(*docs)[LONGEST_DOC] = mti_calloc(table.n, sizeof *docs);
    char *copy = mti_strdup(name); /* argp's prototype is not const */
    for (size_t i = 0; docs && i < table.n; i++) {
        const mti_option_row *r = table.at[i].key ? row_of_key(verb, table.at[i].key) : NULL;
        if (!r) continue;
        write_doc(docs[i], &defaults, r);
        table.at[i].doc = docs[i];
    }
    const struct argp argp = {
        .options = table.at, .parser = parse_key, .args_doc = info->args, .doc = info->doc};
    if (docs && copy)
        argp_help(&argp, out, ARGP_HELP_USAGE | ARGP_HELP_PRE_DOC | ARGP_HELP_LONG, copy);
    mti_free(copy);
    mti_free(docs);
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

bool mti_options_command(const mti_options *o, mti_verb verb, char *buf, size_t n)
{
    char value[MTI_VALUE_TEXT];
    FILE *out = fmemopen(buf, n, "w");
    if (!out) return mti_fail_bool(MT_ERR_MEMORY, "host memory: none left to write a command");
    mti_print(out, "memtape %s ", mti_verb_get(verb)->name);
    print_word(out, o->workload.name);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!o->given[id] || !mti_takes(verb, r)) continue;
        mti_print(out, " --%s%s", r->name, r->arg ? " " : "");
        if (r->arg) print_word(out, mti_option_text(o, r, value));
    }
    bool whole = fflush(out) == 0 && ftell(out) < (long)n;
    fclose(out);
    return whole || mti_fail_bool(MT_ERR_ARGUMENT,
                                  "the command `memtape %s` with these options is longer than %zu "
                                  "bytes",
                                  mti_verb_get(verb)->name, n);
}
