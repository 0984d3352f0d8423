/* tokens.h: tokenizers: text to tokens and back, as a Hugging Face tokenizer.json describes them.
 *
 * Read are byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), BPE over characters with byte fallback
 * (Llama 2, Mistral, Gemma) and WordPiece (BERT), with their added tokens; what else a file asks
 * for is refused by its name. Tokens and texts are those of Hugging Face's `tokenizers`. A model
 * over bytes needs none of this: its tokens are the bytes.
 *
 * A tokenizer does not change once it is open: several threads may use one at a time. A build
 * without PCRE2 and utf8proc (-Dtokens=disabled, the page) opens none: MT_ERR_UNSUPPORTED. */
#ifndef MEMTAPE_TOKENS_H
#define MEMTAPE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "memtape/status.h"

MT_C_BEGIN

/* A vocabulary, and how text is divided into its tokens. */
typedef struct mt_tokenizer mt_tokenizer;

/* path: a tokenizer.json, or a folder that has one. MT_ERR_IO if it cannot be read, MT_ERR_FORMAT
 * if it is damaged, MT_ERR_UNSUPPORTED if it asks for what is not known here. The file's truncation
 * and padding are not applied, as in Transformers, where each call asks for its own. */
MT_API mt_tokenizer *mt_tokenizer_open(const char *path);
MT_API void mt_tokenizer_free(mt_tokenizer *t); /* NULL is allowed */

/* ---- the vocabulary ---- */

/* The largest id and 1, the least vocabulary of a model that takes its tokens (models often have a
 * few more rows than that). Given NULL, this and what follows return 0, -1, NULL or false. */
MT_API int64_t mt_tokenizer_size(const mt_tokenizer *t);
/* The id of a token, written as the vocabulary has it ("<|im_start|>", "Ġthe"); -1: there is
 * none. */
MT_API int64_t mt_tokenizer_id(const mt_tokenizer *t, const char *token);
/* The reverse. *n_bytes (may be NULL): the length of the text, which may have zero bytes in it, and
 * has one behind it. NULL: there is no such token. */
MT_API const char *mt_tokenizer_token(const mt_tokenizer *t, int64_t id, size_t *n_bytes);
/* Whether it is a special token, which stands for no text, as "</s>" or "<|im_start|>". */
MT_API bool mt_tokenizer_is_special(const mt_tokenizer *t, int64_t id);

/* The tokens that end a text, of which *ids is set to the first (may be NULL); the i-th is
 * (*ids)[i], and the number is returned. A tokenizer.json alone does not tell, so that there are
 * none; a folder tells in its generation_config.json or config.json ("eos_token_id") and in its
 * tokenizer_config.json ("eos_token"). */
MT_API size_t mt_tokenizer_ends(const mt_tokenizer *t, const int64_t **ids);
/* The text of the folder's chat template, in Jinja, which is not run here: a prompt is encoded as
 * it is given, and the special tokens that it writes out become those tokens. NULL: it has none. */
MT_API const char *mt_tokenizer_chat_template(const mt_tokenizer *t);

/* ---- text to tokens ---- */

/* Tokens. All zero: empty. Calls append; the caller frees. */
typedef struct mt_token_list {
    int64_t *at;
    size_t n, cap; /* tokens in it, and how many it has room for */
} mt_token_list;
/* Text, alike. */
typedef struct mt_text {
    char *at; /* NULL, or with a zero byte behind the last */
    size_t n, cap;
} mt_text;
MT_API void mt_token_list_free(mt_token_list *list); /* empties it; NULL is allowed */
MT_API void mt_text_free(mt_text *text);

/* Appends the tokens of a text of n_bytes. with_special: with those that the tokenizer puts around
 * a text, such as "<s>" or "[CLS]" and "[SEP]"; a special token that is written out in the text
 * becomes that token either way. Where the text is not UTF-8, each part that is none is read as one
 * U+FFFD, as Python's decode("utf-8", "replace") does. After a failure the list is as before. */
MT_API mt_status mt_tokenizer_encode(const mt_tokenizer *t, const char *text, size_t n_bytes,
                                     bool with_special, mt_token_list *ids);

/* ---- tokens to text ---- */

/* Appends the text of n tokens; skip_special: without special tokens. Always UTF-8: bytes that
 * tokens leave without a character are U+FFFD. A token that does not exist is an error. */
MT_API mt_status mt_tokenizer_decode(const mt_tokenizer *t, const int64_t *ids, size_t n,
                                     bool skip_special, mt_text *text);

/* The same token by token, for text that is shown as it is written: no character is ever broken. */
typedef struct mt_token_stream mt_token_stream;
/* t must outlive it. */
MT_API mt_token_stream *mt_token_stream_new(const mt_tokenizer *t, bool skip_special);
MT_API void mt_token_stream_free(mt_token_stream *s); /* NULL is allowed */
/* Appends what is certain once this token has come: nothing while a character lacks bytes. */
MT_API mt_status mt_token_stream_next(mt_token_stream *s, int64_t id, mt_text *text);
/* Appends what was held back, and begins a new text. */
MT_API mt_status mt_token_stream_end(mt_token_stream *s, mt_text *text);

MT_C_END
#endif
