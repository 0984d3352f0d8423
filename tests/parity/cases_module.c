/* cases_module.c: the cases of the op table for Python: a description as JSON, and a function to
 * call a row. Python loads libmemtape through this library. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "collectives/collective_cases.h"

static const mti_case_sizes sizes = {[MTI_SIZE_M] = 3, [MTI_SIZE_N] = 5, [MTI_SIZE_K] = 2};

typedef struct writer {
    char *at, *end;
} writer;

static void MT_PRINTF(2, 3) put(writer *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(w->at, (size_t)(w->end - w->at), fmt, args);
    va_end(args);
    w->at = n < w->end - w->at ? w->at + n : w->end;
}

/* The nth case as a JSON object, which is cut off if `size` is too small; false after the last. */
MT_API bool mtt_case(int nth, char *text, size_t size);
bool mtt_case(int nth, char *text, size_t size)
{
    mti_case c;
    writer w = {text, text + size};
    if (!mti_case_get(&mti_all_cases, MTI_CASE_PARITY, nth, sizes, &c)) return false;
    put(&w, "{\"op\": \"%s\", \"note\": \"%s\", \"inner\": %s, \"parameters\": [", c.op, c.note,
        c.users & MTI_CASE_INNER ? "true" : "false");
    for (int i = 0; i < c.n_p; i++) put(&w, "%s%.17g", i ? ", " : "", c.p[i]);
    put(&w, "], \"inputs\": [");
    for (int i = 0; i < c.n_in; i++) {
        const mti_case_input *in = &c.in[i];
        put(&w, "%s{\"low\": %g, \"high\": %g, \"away\": %g, \"below\": %lld, \"shape\": [",
            i ? ", " : "", in->low, in->high, in->away, (long long)in->below);
        for (int d = 0; d < in->rank; d++) put(&w, d ? ", %lld" : "%lld", (long long)in->shape[d]);
        put(&w, "]}");
    }
    put(&w, "]}");
    return true;
}

/* Calls a row of the op table with these inputs (NULL: left out) and parameters, as in
 * ops/op_cases.def. */
MT_API mt_tensor *mtt_call(const char *row, int n_in, mt_tensor **in, int n_p, const double *p);
mt_tensor *mtt_call(const char *row, int n_in, mt_tensor **in, int n_p, const double *p)
{
    mt_tensor *all[MTI_CASE_INPUTS] = {0};
    mti_case c;
    if (n_in > MTI_CASE_INPUTS || n_p > MTI_CASE_PARAMETERS ||
        !mti_case_find(&mti_all_cases, row, MTI_CASE_PARITY, sizes, &c))
        return NULL;
    memcpy(all, in, (size_t)n_in * sizeof *in);
    memcpy(c.p, p, (size_t)n_p * sizeof *p);
    c.n_p = n_p;
    return mti_case_call(&c, all);
}
