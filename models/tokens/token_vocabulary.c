/* token_vocabulary.c: tokens by their texts and by their ids. */
#include "tokens/tokenizer.h"

#define SPARE_IDS 65536 /* ids that files leave out */

uint32_t mti_token_find(const mti_vocabulary *v, uint64_t hash, const char *before, size_t n_before,
                        const char *text, size_t n, bool model)
{
    size_t probe = 0, id;
    while ((id = mti_hashmap_next(&v->by_text, hash, &probe)) != MTI_NO_PLACE) {
        const mti_token *token = &v->tokens.at[id];
        const char *at = v->texts.at + token->at;
        if (token->n == n_before + n && (!model || token->in_model) &&
            !memcmp(at, before, n_before) && !memcmp(at + n_before, text, n))
            return (uint32_t)id;
    }
    return MTI_NO_TOKEN;
}

uint32_t mti_token_named(const mti_vocabulary *v, const char *text, size_t n, bool model)
{
    return mti_token_find(v, mti_hash_bytes(MTI_HASH_BEGIN, text, n), "", 0, text, n, model);
}

bool mti_token_add(mti_vocabulary *v, const char *text, size_t n, int64_t id, bool model,
                   size_t most)
{
    static const mti_token none = {0};
    const int shown = (int)(n < MTI_SHOWN_BYTES ? n : MTI_SHOWN_BYTES);
    if (id < 0 || (uint64_t)id >= most + SPARE_IDS || n > UINT32_MAX / 2)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "the id of token \"%.*s\" is %lld; the file has %zu tokens", shown,
                             text, (long long)id, most);
    const uint32_t there = mti_token_named(v, text, n, false);
    if (there != MTI_NO_TOKEN)
        return there == id || mti_fail_bool(MT_ERR_FORMAT, "token \"%.*s\" has the ids %u and %lld",
                                            shown, text, there, (long long)id);
    while (v->tokens.n <= (size_t)id)
        if (!MTI_PUSH(&v->tokens, none)) return false;
    mti_token *token = &v->tokens.at[id];
    if (token->there)
        return mti_fail_bool(MT_ERR_FORMAT, "tokens \"%.60s\" and \"%.*s\" both have the id %lld",
                             v->texts.at + token->at, shown, text, (long long)id);
    const mti_token made = {.at = v->texts.n,
                            .written_at = v->texts.n,
                            .n = (uint32_t)n,
                            .written_n = (uint32_t)n,
                            .there = true,
                            .in_model = model};
    if (!mti_text_add(&v->texts, text, n) || !mti_text_add(&v->texts, "", 1) ||
        !mti_hashmap_add(&v->by_text, mti_hash_bytes(MTI_HASH_BEGIN, text, n), (size_t)id))
        return false;
    *token = made;
    return true;
}
