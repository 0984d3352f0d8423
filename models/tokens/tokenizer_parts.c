/* tokenizer_parts.c: what a tokenizer is made of, given back. */
#include "tokens/tokenizer.h"

static void free_steps(mti_steps *steps)
{
    for (size_t i = 0; i < steps->n; i++) mti_step_free(&steps->at[i]);
    mti_free(steps->at);
}

void mt_tokenizer_free(mt_tokenizer *t)
{
    if (!t) return;
    mt_text_free(&t->vocabulary.texts);
    mti_free(t->vocabulary.tokens.at);
    mti_hashmap_free(&t->vocabulary.by_text);
    mt_text_free(&t->model.prefix), mt_text_free(&t->model.suffix);
    mti_hashmap_free(&t->model.pairs);
    mti_free(t->model.merges.at);
    mti_added_free(&t->raw), mti_added_free(&t->normalized);
    free_steps(&t->normalizers), free_steps(&t->pre_tokenizers), free_steps(&t->decoders);
    mt_token_list_free(&t->before), mt_token_list_free(&t->after), mt_token_list_free(&t->ends);
    mti_free(t->chat_template);
    mti_free(t);
}
