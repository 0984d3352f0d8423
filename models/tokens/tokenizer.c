/* tokenizer.c: opens a tokenizer, and answers about its vocabulary. */
#include <stdio.h>
#include <unistd.h>
#include "files/files.h"
#include "files/json_text.h"
#include "tokens/tokenizer.h"

#define MAX_FILE ((size_t)256 << 20)

/* ---- files ---- */

void mti_tokenizer_blame(const char *path)
{
    mti_error e;
    mti_error_get(&e);
    if (e.status != MT_ERR_MEMORY) mti_fail(e.status, "%s: %s", path, e.text);
}

static mt_tokenizer *open_file(const char *path)
{
    size_t n;
    char *text = mti_file_read(path, MAX_FILE, &n);
    mt_tokenizer *t = text ? mti_tokenizer_parse(path, text, n) : NULL;
    mti_free(text);
    return t;
}

/* ---- a folder's other files ---- */

/* The JSON object of a file of the folder, NULL if it is not there; false if it cannot be read. */
static bool read_json(const char *folder, const char *name, json_t **root)
{
    char path[MTI_PATH], *text = NULL;
    size_t n;
    json_error_t error;
    const uint64_t failures = mti_failures();
    *root = NULL;
    bool ok = mti_path_in(path, folder, name) &&
              (access(path, F_OK) != 0 || (text = mti_file_read(path, MAX_FILE, &n)));
    if (text) *root = mti_json_read(text, n, &error);
    if (text && !*root) { /* "model_max_length" may be 1e30 written out */
        mt_clear_error();
        *root = mti_json_read_reals(text, n, &error);
    }
    if (text && !json_is_object(*root)) {
        ok = false;
        mti_fail_around(failures, MT_ERR_FORMAT, "%s: not a JSON object", path);
        json_decref(*root);
        *root = NULL;
    }
    mti_free(text);
    return ok;
}

static bool add_end(mt_tokenizer *t, int64_t id)
{
    if (id < 0 || id >= mt_tokenizer_size(t) || !t->vocabulary.tokens.at[id].there) return true;
    for (size_t i = 0; i < t->ends.n; i++)
        if (t->ends.at[i] == id) return true;
    return MTI_PUSH(&t->ends, id);
}

/* "eos_token_id": a number, or a list of them. Some name rows that have no token. */
static bool add_end_ids(mt_tokenizer *t, const json_t *ids)
{
    if (json_is_integer(ids)) return add_end(t, (int64_t)json_integer_value(ids));
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (json_is_integer(json_array_get(ids, i)) &&
            !add_end(t, (int64_t)json_integer_value(json_array_get(ids, i))))
            return false;
    return true;
}

/* "chat_template": a text, or a list of them with names, of which "default" is taken. */
static const char *template_of(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(value);
}

/* "eos_token": a text, or an object that has it as "content". */
static bool add_config(mt_tokenizer *t, const json_t *config)
{
    const json_t *end = json_object_get(config, "eos_token");
    const char *text =
        json_string_value(json_is_object(end) ? json_object_get(end, "content") : end);
    const char *chat = template_of(json_object_get(config, "chat_template"));
    if (text && !add_end(t, mt_tokenizer_id(t, text))) return false;
    return !chat || (t->chat_template = mti_strdup(chat));
}

static bool read_folder(mt_tokenizer *t, const char *folder)
{
    json_t *generation = NULL, *config = NULL, *own = NULL;
    char path[MTI_PATH];
    size_t n;
    bool ok = mti_path_in(path, folder, "chat_template.jinja") &&
              read_json(folder, "generation_config.json", &generation) &&
              read_json(folder, "config.json", &config) &&
              read_json(folder, "tokenizer_config.json", &own);
    const json_t *ids = json_object_get(generation, "eos_token_id");
    ok = ok && add_end_ids(t, ids ? ids : json_object_get(config, "eos_token_id")) &&
         add_config(t, own);
    if (ok && access(path, F_OK) == 0) { /* newer than the key, and so it holds */
        mti_free(t->chat_template);
        ok = (t->chat_template = mti_file_read(path, MAX_FILE, &n)) != NULL;
    }
    json_decref(generation), json_decref(config), json_decref(own);
    return ok;
}

static mt_tokenizer *open_folder(const char *folder)
{
    char path[MTI_PATH], other[MTI_PATH];
    if (!mti_path_in(path, folder, "tokenizer.json") ||
        !mti_path_in(other, folder, "tokenizer.model"))
        return NULL;
    if (access(path, F_OK) != 0)
        return mti_fail_null(MT_ERR_IO, "%s: there is no tokenizer.json in this folder%s", folder,
                             access(other, F_OK) == 0
                                 ? ", and tokenizer.model is not read here; "
                                   "AutoTokenizer.from_pretrained(...).save_pretrained(...) "
                                   "of Transformers writes tokenizer.json"
                                 : "");
    mt_tokenizer *t = open_file(path);
    if (!t || read_folder(t, folder)) return t;
    mt_tokenizer_free(t);
    return NULL;
}

mt_tokenizer *mt_tokenizer_open(const char *path)
{
    if (!path) return mti_fail_null(MT_ERR_ARGUMENT, "tokenizer: the path is NULL");
    return mti_is_folder(path) ? open_folder(path) : open_file(path);
}

/* ---- the vocabulary ---- */

int64_t mt_tokenizer_size(const mt_tokenizer *t) { return t ? (int64_t)t->vocabulary.tokens.n : 0; }

int64_t mt_tokenizer_id(const mt_tokenizer *t, const char *token)
{
    const uint32_t id =
        t && token ? mti_token_named(&t->vocabulary, token, strlen(token), false) : MTI_NO_TOKEN;
    return id == MTI_NO_TOKEN ? -1 : (int64_t)id;
}

static const mti_token *token_at(const mt_tokenizer *t, int64_t id)
{
    if (!t || id < 0 || (uint64_t)id >= t->vocabulary.tokens.n) return NULL;
    const mti_token *token = &t->vocabulary.tokens.at[id];
    return token->there ? token : NULL;
}

const char *mt_tokenizer_token(const mt_tokenizer *t, int64_t id, size_t *n_bytes)
{
    const mti_token *token = token_at(t, id);
    if (token && n_bytes) *n_bytes = token->n;
    return token ? t->vocabulary.texts.at + token->at : NULL;
}

bool mt_tokenizer_is_special(const mt_tokenizer *t, int64_t id)
{
    const mti_token *token = token_at(t, id);
    return token && token->special;
}

size_t mt_tokenizer_ends(const mt_tokenizer *t, const int64_t **ids)
{
    if (ids) *ids = t ? t->ends.at : NULL;
    return t ? t->ends.n : 0;
}

const char *mt_tokenizer_chat_template(const mt_tokenizer *t)
{
    return t ? t->chat_template : NULL;
}
