/* token_list.c: lists of tokens, and texts, which calls append to. */
#include "base/base.h"
#include "memtape/models/tokens.h"

void mt_token_list_free(mt_token_list *list)
{
    if (!list) return;
    mti_free(list->at);
    *list = (mt_token_list){0};
}

void mt_text_free(mt_text *text)
{
    if (!text) return;
    mti_free(text->at);
    *text = (mt_text){0};
}
