/* options.c: the command line, read by argp, and its help. */
#include <argp.h>
#include <errno.h>
#include <string.h>
#include "cli/option_rows.h"
#include "cli/sweep_rows.h"

#define MAX_ROWS 120 /* options, aliases, headings and the end */

static int key_of(const mti_option_row *r) { return r->letter ? r->letter : 0x100 + (int)r->id; }

static const mti_option_row *row_of_key(mti_verb verb, int key)
{
    for (size_t i = 0; i < mti_n_option_rows; i++)
        if (mti_option_rows[i].verbs >> verb & 1 && key == key_of(&mti_option_rows[i]))
            return &mti_option_rows[i];
    return NULL;
}

/* ---- the verb's rows for argp ---- */

typedef struct rows {
    size_t n;
    struct argp_option at[MAX_ROWS];
} rows;

static void add_row(rows *out, const mti_option_row *r)
{
    out->at[out->n++] =
        (struct argp_option){.name = r->name, .key = key_of(r), .arg = r->arg, .doc = r->doc};
    for (size_t i = 0; i < mti_n_option_aliases; i++)
        if (mti_option_aliases[i].id == r->id)
            out->at[out->n++] = (struct argp_option){.name = mti_option_aliases[i].name,
                                                     .flags = OPTION_ALIAS | OPTION_HIDDEN};
}

static void make_rows(mti_verb verb, rows *out)
{
    const char *heading = NULL;
    *out = (rows){0};
    for (size_t i = 0; i < mti_n_option_rows; i++) {
        const mti_option_row *r = &mti_option_rows[i];
        for (size_t k = 0; k < mti_n_option_groups; k++)
            if (mti_option_groups[k].first == r->id) heading = mti_option_groups[k].heading;
        if (!(r->verbs >> verb & 1)) continue;
        if (heading) out->at[out->n++] = (struct argp_option){.doc = heading};
        heading = NULL; /* once */
        add_row(out, r);
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
    return mti_option_read(o, r, arg) && mti_keep_word(o, r, arg) ? 0 : EINVAL;
}

/* Lets argp say what is wrong with words that it has refused. getopt would print them as they are,
 * so it reads a copy, without what a terminal would obey. */
static void report_words(const struct argp *argp, mti_verb verb, int argc, char **argv)
{
    mti_options unused;
    char **words = mti_calloc((size_t)argc + 1, sizeof *words);
    bool ok = words != NULL;
    for (int i = 0; ok && i < argc; i++) {
        ok = (words[i] = mti_strdup(argv[i]));
        if (ok) mti_make_printable(words[i]);
    }
    mti_option_defaults(&unused, verb);
    if (ok) argp_parse(argp, argc, words, ARGP_NO_EXIT | ARGP_NO_HELP, NULL, &unused);
    mti_options_free(&unused);
    for (int i = 0; words && i < argc; i++) mti_free(words[i]);
    mti_free(words);
}

/* argp has reported an unknown option: suggests the one with the nearest name. */
static void suggest(mti_options *o, mti_verb verb, int argc, char **argv)
{
    const char *names[MAX_ROWS];
    size_t n = 0;
    for (size_t i = 0; i < mti_n_option_rows; i++)
        if (mti_option_rows[i].verbs >> verb & 1) names[n++] = mti_option_rows[i].name;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char word[64];
        bool known = strncmp(argv[i], "--", 2) != 0;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(argv[i], "="), argv[i]);
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

bool mti_options_parse(mti_options *o, mti_verb verb, int argc, char **argv, bool silent)
{
    rows table;
    mti_option_defaults(o, verb);
    make_rows(verb, &table);
    const struct argp argp = {.options = table.at, .parser = parse_key};
    const unsigned flags = ARGP_NO_EXIT | ARGP_NO_HELP | ARGP_NO_ERRS;
    error_t status = argp_parse(&argp, argc, argv, flags, NULL, o);
    if (status == ENOMEM) return ran_out(o);
    if (status != 0 && !*o->error) {
        if (!silent) report_words(&argp, verb, argc, argv);
        suggest(o, verb, argc, argv);
    }
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

/* ---- help ---- */

#define LONGEST_DOC 400

/* The option's default as one would type it; "" if there is none. */
static void default_text(char *buf, size_t n, const mti_options *o, const mti_option_row *r)
{
    const void *field = (const char *)o + r->at;
    int64_t i = r->form == MTI_INT || r->form == MTI_EXTENT ? *(const int64_t *)field : 0;
    double x = r->form == MTI_REAL ? *(const double *)field : 0;
    const char *text = r->form == MTI_TEXT ? *(const char *const *)field : NULL;
    *buf = 0;
    if (r->form == MTI_OTHER) text = "none";
    if (r->id == MTI_O_LORA_TARGETS) text = "all";
    if (r->id == MTI_O_DTYPE) text = mt_dtype_name(o->given_config.dtype);
    if (r->id == MTI_O_DEVICE) text = o->workload.device.kind;
    if (r->form == MTI_CHOICE) text = r->choice->names[*(const int *)field];
    if (i) snprintf(buf, n, "%lld", (long long)i);
    if (x > 0) mti_format(buf, n, "%g", x);
    if (text && *text > ' ') snprintf(buf, n, "%s", text);
}

static void append(char doc[LONGEST_DOC], const char *before, const char *text, const char *after)
{
    size_t n = strlen(doc);
    snprintf(doc + n, LONGEST_DOC - n, "%s%s%s", before, text, after);
}

static void write_doc(char doc[LONGEST_DOC], const mti_options *o, const mti_option_row *r)
{
    char value[64];
    append(doc, "", r->doc, "");
    for (int i = 0; r->choice && i < r->choice->n; i++)
        append(doc, i ? ", " : ": ", r->choice->names[i], "");
    default_text(value, sizeof value, o, r);
    if (*value) append(doc, " (default ", value, ")");
}

void mti_options_help(mti_verb verb, const char *name, FILE *out)
{
    const mti_verb_info *info = mti_verb_get(verb);
    rows table;
    mti_options defaults;
    mti_option_defaults(&defaults, verb);
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
