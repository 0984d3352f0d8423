/* gguf.c: parsing any bytes as a GGUF file gives one whose values lie within the header and whose
 * tensors lie within the file, or an error with a message; blocks are widened within their bytes.
 */
#include <stdlib.h>
#include <string.h>
#include "io/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void look_at(const mti_gguf *f, const uint8_t *data, size_t n_bytes)
{
    for (size_t i = 0; i < f->tensors.n; i++) {
        const mti_gguf_tensor *t = &f->tensors.at[i];
        size_t values = 1, bytes, of = mti_gguf_block(t->type, &bytes);
        if (!of || t->at > n_bytes || t->bytes > n_bytes - t->at) abort();
        for (int d = 0; d < t->rank; d++) values *= (size_t)t->shape[d];
        if (t->bytes != values / of * bytes) abort();
        float *out = malloc(values * sizeof *out);
        if (out) mti_gguf_widen(t->type, data + t->at, values, out);
        free(out);
    }
    for (size_t i = 0; i < f->values.n; i++) {
        const mti_gguf_value *v = &f->values.at[i];
        if (v->n > n_bytes) abort();
        mti_gguf_text *texts = malloc((size_t)v->n * sizeof *texts + 1);
        if (texts && mti_gguf_texts(v, texts))
            for (uint64_t k = 0; k < v->n; k++)
                if (texts[k].n > n_bytes ||
                    (texts[k].n && !memchr(texts[k].at, texts[k].at[0], texts[k].n)))
                    abort();
        if (v->n) mti_gguf_integer(v, v->n - 1);
        mti_gguf_real(v);
        free(texts);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    bool cut;
    mt_clear_error();
    mti_gguf *f = mti_gguf_parse("input", data, n_bytes, n_bytes, &cut);
    if (f)
        look_at(f, data, n_bytes);
    else if (!*mt_last_error())
        abort();
    mti_gguf_free(f);
    return 0;
}
