/* options.c: parsing any words gives options that can be run, or an error with a message. Nothing
 * is run. The first byte chooses the verb; zero bytes separate the words in the rest. */
#include <stdlib.h>
#include <string.h>
#include "verbs/verbs.h"
#include "options/options.h"
#include "options/option_table.h"

#define MAX_WORDS 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* What a verb that builds a model assumes. */
static void check_model(const mti_options *o)
{
    const mt_model_config *c = &o->workload.config;
    if (o->workload.batch < 1 || o->workload.seq < 1 || c->hidden < 1 || c->heads < 0) abort();
    if (c->heads && c->hidden % c->heads) abort();
    if (!(c->dropout >= 0 && c->dropout < 1)) abort();
    if (mt_model_config_check(c) != MT_OK) abort();
    size_t n;
    if (!mti_mul_size((size_t)o->workload.batch * (size_t)o->workload.seq, (size_t)c->hidden, &n))
        abort();
    if (c->kind == MT_MODEL_GPT && o->workload.seq > c->context) abort();
    if (o->workload.memory.qlora && !o->workload.memory.lora_rank) abort();
}

/* Rows that were accepted can be made again, and each is valid by itself. */
static void check_sweep(const mti_options *o)
{
    mti_options copy = *o;
    mti_sweep_rows rows;
    if (!mti_sweep_rows_make(&rows, &copy)) abort();
    for (size_t i = 0; i < rows.n; i++) {
        if (!rows.at[i].label) abort();
        check_model(&rows.at[i].options);
    }
    mti_sweep_rows_free(&rows);
}

static void check(const mti_options *o)
{
    if (o->help) return;
    if (o->verb == MTI_SWEEP) check_sweep(o);
    bool builds = o->verb == MTI_PROFILE || o->verb == MTI_EXPLAIN || o->verb == MTI_PLAN ||
                  (o->verb == MTI_TRAIN && !o->train.resume && !o->train.settings.from);
    if (builds) check_model(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes == 0) return 0;
    char name[] = "memtape", *words[MAX_WORDS + 1] = {name};
    char *text = malloc(n_bytes); /* the words, each ending in a zero */
    if (!text) return 0;
    memcpy(text, data + 1, n_bytes - 1);
    text[n_bytes - 1] = 0;
    int n = 1;
    for (size_t at = 0; at + 1 < n_bytes && n < MAX_WORDS; at += strlen(text + at) + 1)
        words[n++] = text + at;
    mti_options o;
    mt_clear_error();
    if (mti_options_parse(&o, mti_verb_rules_of((mti_verb)(data[0] % MTI_VERB_COUNT)), NULL, n,
                          words))
        check(&o);
    mti_options_free(&o);
    free(text);
    return 0;
}
