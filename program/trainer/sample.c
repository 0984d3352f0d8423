/* sample.c: text of any length from a model with a limited context. */
#include <string.h>
#include "trainer/trainer.h"

typedef struct sample {
    int64_t *window; /* [context]: the end of the text, as ids */
    int64_t n;       /* ids in it */
    mti_token_fn *fn;
    void *user;
    bool stopped;
} sample;

static bool take(void *user, const int64_t *token)
{
    sample *s = user;
    s->window[s->n++] = *token;
    s->stopped = !s->fn(s->user, *token);
    return !s->stopped;
}

void mti_generated_add(mt_generate_stats *sum, const mt_generate_stats *part)
{
    sum->tokens += part->tokens;
    sum->first_s += part->first_s;
    sum->rest_s += part->rest_s;
    if (part->cache_bytes > sum->cache_bytes) sum->cache_bytes = part->cache_bytes;
}

/* One window after the other; each begins with the last half of the one before. */
static bool run(sample *s, mt_module *model, int64_t context, int64_t n,
                const mt_generate_options *options, mt_generate_stats *stats)
{
    mt_generate_options part_options = *options;
    while (stats->tokens < n && !s->stopped) {
        int64_t keep = context / 2;
        if (s->n == context) {
            memmove(s->window, s->window + s->n - keep, (size_t)keep * sizeof *s->window);
            s->n = keep;
        }
        int64_t remaining = n - stats->tokens, room = context - s->n;
        mt_generate_stats part;
        part_options.first_draw = options->first_draw + (uint64_t)stats->tokens;
        if (mt_generate(model, 1, s->n, s->window, remaining < room ? remaining : room,
                        &part_options, take, s, &part) != MT_OK)
            return false;
        mti_generated_add(stats, &part);
    }
    return true;
}

bool mti_sample(mt_module *model, const int64_t *prompt, size_t n_prompt, int64_t n,
                const mt_generate_options *options, mti_token_fn *fn, void *user,
                mt_generate_stats *stats)
{
    mt_generate_stats sum = {0};
    const mt_model_config *c = mt_model_config_of(model);
    if (!c || c->context < 2)
        return mti_fail_bool(MT_ERR_ARGUMENT, "a context of %lld leaves no room for a next token",
                             c ? (long long)c->context : 0);
    const size_t context = (size_t)c->context, skip = n_prompt > context ? n_prompt - context : 0;
    sample s = {.fn = fn, .user = user, .n = (int64_t)(n_prompt - skip)};
    s.window = mti_calloc(context, sizeof *s.window);
    if (!s.window) return false;
    if (s.n) memcpy(s.window, prompt + skip, (size_t)s.n * sizeof *s.window);
    bool ok = run(&s, model, c->context, n, options, &sum);
    mti_free(s.window);
    if (stats) *stats = sum;
    return ok;
}
