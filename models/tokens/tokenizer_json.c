/* tokenizer_json.c: reads a tokenizer.json. It is not trusted: what is missing, of another type or
 * out of range is an error, and so is what is not known here, since a text that is divided in
 * another way is worse than none. */
#include "tokens/tokenizer_json.h"

/* ---- what stands around a text ---- */

static bool add_around(mt_tokenizer *t, mt_token_list *list, const json_t *id)
{
    const mti_vocabulary *v = &t->vocabulary;
    const json_int_t token = json_integer_value(id);
    if (!json_is_integer(id) || token < 0 || (uint64_t)token >= v->tokens.n ||
        !v->tokens.at[token].there)
        return mti_key_wrong("ids", id, "the id of a token");
    return MTI_PUSH(list, (int64_t)token);
}

/* The ids of a template's special token. */
static bool read_special(mt_tokenizer *t, mt_token_list *list, const json_t *o, const char *name)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(o, "special_tokens"), name), "ids");
    if (!json_is_array(ids))
        return mti_key_wrong("special_tokens", mti_key_get(o, "special_tokens"),
                             "the ids of the template's tokens");
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (!add_around(t, list, json_array_get(ids, i))) return false;
    return true;
}

static bool read_template(mt_tokenizer *t, const json_t *o, mt_token_list *before,
                          mt_token_list *after)
{
    const json_t *parts = mti_key_get(o, "single");
    size_t texts = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *text =
            json_string_value(json_object_get(json_object_get(part, "Sequence"), "id"));
        const char *token =
            json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
        texts += text && !strcmp(text, "A");
        if (!token && (!text || strcmp(text, "A")))
            return mti_key_wrong("single", part, "special tokens and the text \"A\"");
        if (token && !read_special(t, texts ? after : before, o, token)) return false;
    }
    return texts == 1 || mti_key_wrong("single", parts, "a list with the text \"A\" once");
}

/* "cls" and "sep": [text, id]. */
static bool read_pair(mt_tokenizer *t, const json_t *o, mt_token_list *before, mt_token_list *after)
{
    return add_around(t, before, json_array_get(mti_key_get(o, "cls"), 1)) &&
           add_around(t, after, json_array_get(mti_key_get(o, "sep"), 1));
}

static bool read_processor(mt_tokenizer *t, const json_t *o)
{
    if (!o || json_is_null(o)) return true;
    const char *type = json_string_value(json_object_get(o, "type"));
    if (!type) return mti_key_wrong("post_processor", o, "an object with a \"type\"");
    if (!strcmp(type, "ByteLevel")) return true; /* changes offsets alone */
    if (!strcmp(type, "Sequence")) {
        const json_t *parts = json_object_get(o, "processors");
        if (!json_is_array(parts)) return mti_key_wrong("processors", parts, "a list");
        for (size_t i = 0; i < json_array_size(parts); i++)
            if (!read_processor(t, json_array_get(parts, i))) return false;
        return true;
    }
    mt_token_list before = {0}, after = {0};
    bool ok;
    if (!strcmp(type, "TemplateProcessing"))
        ok = read_template(t, o, &before, &after);
    else if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
        ok = read_pair(t, o, &before, &after);
    else
        return mti_key_unknown("post_processor", type);
    ok = ok && mti_tokens_add(&before, &t->before) && mti_tokens_add(&t->after, &after);
    if (ok) {
        const mt_token_list old = t->before;
        t->before = before, before = old;
    }
    mt_token_list_free(&before), mt_token_list_free(&after);
    return ok;
}

/* ---- the model ---- */

static bool read_affix(const json_t *o, const char *key, mt_text *out)
{
    const char *text = mti_key_text(o, key, "");
    return text && mti_text_add(out, text, strlen(text));
}

static bool read_unknown(mt_tokenizer *t, const json_t *o, bool needed)
{
    const char *text = mti_key_text(o, "unk_token", needed ? NULL : "");
    if (!text) return false;
    t->model.unknown = mti_token_named(&t->vocabulary, text, strlen(text), true);
    return (!*text && !needed) || t->model.unknown != MTI_NO_TOKEN ||
           mti_fail_bool(MT_ERR_FORMAT, "\"unk_token\" is \"%.60s\", which is not in \"vocab\"",
                         text);
}

/* "a b", or ["a", "b"]. */
static bool read_merge(mt_tokenizer *t, const json_t *merge, uint32_t rank)
{
    const bool pair = json_array_size(merge) == 2;
    const char *a = json_string_value(pair ? json_array_get(merge, 0) : merge), *gap = a;
    if (a && !pair) gap = strchr(a, ' ');
    const char *b = pair ? json_string_value(json_array_get(merge, 1)) : gap ? gap + 1 : NULL;
    const size_t n = !a || !b ? 0 : pair ? strlen(a) : (size_t)(gap - a);
    const int done = a && b ? mti_model_merge(t, a, n, b, strlen(b), rank) : 0;
    return done > 0 ||
           (done == 0 &&
            mti_key_wrong("merges", merge, "two tokens of the vocabulary that make a third"));
}

static bool read_bpe(mt_tokenizer *t, const json_t *o)
{
    mti_token_model *m = &t->model;
    const json_t *merges = mti_key_get(o, "merges"), *dropout = mti_key_get(o, "dropout");
    m->kind = MTI_BPE;
    if (!mti_keys_only(o, "BPE",
                       " dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                       "byte_fallback ignore_merges vocab merges "))
        return false;
    if (dropout && json_number_value(dropout) != 0)
        return mti_key_wrong("dropout", dropout, "null: each text has one division here");
    if (!json_is_array(merges)) return mti_key_wrong("merges", merges, "a list");
    if (!read_unknown(t, o, false) || !read_affix(o, "continuing_subword_prefix", &m->prefix) ||
        !read_affix(o, "end_of_word_suffix", &m->suffix) ||
        !mti_key_flag(o, "fuse_unk", false, &m->fuse_unknown) ||
        !mti_key_flag(o, "byte_fallback", false, &m->byte_fallback) ||
        !mti_key_flag(o, "ignore_merges", false, &m->ignore_merges))
        return false;
    for (size_t i = 0; i < json_array_size(merges); i++)
        if (!read_merge(t, json_array_get(merges, i), (uint32_t)i)) return false;
    return true;
}

static bool read_wordpiece(mt_tokenizer *t, const json_t *o)
{
    mti_token_model *m = &t->model;
    m->kind = MTI_WORDPIECE;
    return mti_keys_only(o, "WordPiece",
                         " unk_token continuing_subword_prefix max_input_chars_per_word vocab ") &&
           read_unknown(t, o, true) && read_affix(o, "continuing_subword_prefix", &m->prefix) &&
           mti_key_count(o, "max_input_chars_per_word", &m->most_chars);
}

/* Old files say no type: only BPE has merges. */
static bool read_model(mt_tokenizer *t, const json_t *o, size_t n_added)
{
    json_t *vocab = json_object_get(o, "vocab"), *id;
    const char *text, *type = json_string_value(json_object_get(o, "type"));
    if (!json_is_object(o)) return mti_key_wrong("model", o, "an object");
    if (!type) type = json_object_get(o, "merges") ? "BPE" : "WordPiece";
    const bool bpe = !strcmp(type, "BPE");
    if (!bpe && strcmp(type, "WordPiece")) return mti_key_unknown("model", type);
    if (!json_is_object(vocab)) return mti_key_wrong("vocab", vocab, "an object");
    json_object_foreach(vocab, text, id)
    {
        if (!json_is_integer(id)) return mti_key_wrong(text, id, "the id of a token");
        if (!mti_token_add(&t->vocabulary, text, strlen(text), (int64_t)json_integer_value(id),
                           true, json_object_size(vocab) + n_added))
            return false;
    }
    if (!(bpe ? read_bpe(t, o) : read_wordpiece(t, o))) return false;
    mti_model_finish(t);
    return true;
}

/* ---- added tokens ---- */

/* Into the vocabulary, with *special: whether those that are special, which come first. */
static bool read_added(mt_tokenizer *t, const json_t *o, mti_matcher *m, bool specials, size_t most)
{
    const char *text = json_is_object(o) ? mti_key_text(o, "content", NULL) : NULL;
    const json_t *id = mti_key_get(o, "id");
    mti_added added = {0};
    bool special, normal;
    if (!json_is_object(o)) return mti_key_wrong("added_tokens", o, "objects");
    if (!text || !mti_key_flag(o, "special", false, &special) ||
        !mti_key_flag(o, "normalized", false, &normal) ||
        !mti_key_flag(o, "single_word", false, &added.single_word) ||
        !mti_key_flag(o, "lstrip", false, &added.left) ||
        !mti_key_flag(o, "rstrip", false, &added.right) ||
        !mti_keys_only(o, text, " id content single_word lstrip rstrip normalized special "))
        return false;
    if (special != specials) return true;
    if (!json_is_integer(id)) return mti_key_wrong("id", id, "a whole number");
    if (!mti_token_add(&t->vocabulary, text, strlen(text), (int64_t)json_integer_value(id), false,
                       most))
        return false;
    added.id = (uint32_t)json_integer_value(id);
    t->vocabulary.tokens.at[added.id].special |= special;
    if (!normal) return mti_added_add(&t->raw, text, strlen(text), added);
    /* It is looked for as the normalizers make it, and, since tokenizers 0.22, decoded to that. */
    mt_text normalized = {0};
    mti_token *token = &t->vocabulary.tokens.at[added.id];
    const size_t at = t->vocabulary.texts.n;
    const bool ok = mti_normalize(t, m, text, strlen(text), true, &normalized) &&
                    mti_added_add(&t->normalized, normalized.at, normalized.n, added) &&
                    mti_text_add(&t->vocabulary.texts, normalized.at, normalized.n);
    if (ok) token->written_at = at, token->written_n = (uint32_t)normalized.n;
    mt_text_free(&normalized);
    return ok;
}

static bool read_all_added(mt_tokenizer *t, const json_t *list)
{
    const size_t n = json_array_size(list), most = t->vocabulary.tokens.n + n;
    mti_matcher m = {0};
    if (list && !json_is_array(list)) return mti_key_wrong("added_tokens", list, "a list");
    bool ok = mti_matcher_open(&m);
    for (size_t i = 0; i < 2 * n && ok; i++)
        ok = read_added(t, json_array_get(list, i % n), &m, i < n, most);
    mti_matcher_close(&m);
    return ok;
}

/* ---- the file ---- */

static bool read_file(mt_tokenizer *t, const json_t *root)
{
    const json_t *added = mti_key_get(root, "added_tokens");
    if (!json_is_object(root)) return mti_key_wrong("tokenizer.json", root, "an object");
    return mti_keys_only(root, "the file",
                         " version truncation padding added_tokens normalizer pre_tokenizer "
                         "post_processor decoder model ") &&
           read_model(t, json_object_get(root, "model"), json_array_size(added)) &&
           mti_steps_read(MTI_NORMALIZER, json_object_get(root, "normalizer"), &t->normalizers) &&
           mti_steps_read(MTI_PRE_TOKENIZER, json_object_get(root, "pre_tokenizer"),
                          &t->pre_tokenizers) &&
           mti_steps_read(MTI_DECODER, json_object_get(root, "decoder"), &t->decoders) &&
           read_all_added(t, added) && read_processor(t, json_object_get(root, "post_processor"));
}

mt_tokenizer *mti_tokenizer_parse(const char *name, const char *text, size_t n)
{
    json_t *root = mti_json_named(name, text, n);
    mt_tokenizer *t = root ? mti_calloc(1, sizeof *t) : NULL;
    if (t && !read_file(t, root)) {
        mt_tokenizer_free(t);
        t = NULL;
        mti_tokenizer_blame(name);
    }
    json_decref(root);
    return t;
}
