/* baselines.c: models that only count bytes, as a baseline for a trained one.
 *
 * Witten and Bell 1991: with N bytes seen after a context, T kinds among them, a kind seen n times
 * gets (n + T p) / (N + T), p being what the shorter context says. It has no parameter to tune. */
#include <math.h>
#include "trainer/corpus.h"

typedef struct counts {
    uint64_t of[256], total, kinds;
} counts;

static void count(counts *c, unsigned char byte)
{
    c->kinds += c->of[byte] == 0;
    c->of[byte]++;
    c->total++;
}

static double probability(const counts *c, unsigned char byte, double shorter)
{
    double kinds = (double)c->kinds, total = (double)c->total;
    return c->total ? ((double)c->of[byte] + kinds * shorter) / (total + kinds) : shorter;
}

bool mti_baselines_fit(mti_baselines *b, const mti_corpus *c)
{
    *b = (mti_baselines){.uniform = 8};
    if (c->n_held < 2)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%zu bytes are held out; at least 2 are needed",
                             c->n_held);
    counts *after = mti_calloc(257, sizeof *after); /* one for each byte before, then for none */
    if (!after) return false;
    counts *all = after + 256;
    for (size_t i = 0; i < c->n_train; i++) {
        count(all, c->train[i]);
        if (i) count(&after[c->train[i - 1]], c->train[i]);
    }
    for (size_t i = 1; i < c->n_held; i++) {
        unsigned char byte = c->held[i];
        double one = probability(all, byte, 1.0 / 256);
        b->unigram -= log2(one);
        b->bigram -= log2(probability(&after[c->held[i - 1]], byte, one));
    }
    b->unigram /= (double)(c->n_held - 1);
    b->bigram /= (double)(c->n_held - 1);
    mti_free(after);
    return true;
}
