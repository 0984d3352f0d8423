/* tokenizer.h: what a tokenizer is made of. Text goes through normalizers, is divided by the added
 * tokens and by the pre-tokenizers, and the model makes tokens of each piece. A file's many kinds
 * of normalizers, pre-tokenizers and decoders are made of the few steps below. */
#ifndef MTI_TOKENIZER_H
#define MTI_TOKENIZER_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include "base/base.h"
#include "memtape/models/tokens.h"

/* ---- text ---- */

bool mti_text_add(mt_text *text, const char *bytes, size_t n);
bool mti_text_char(mt_text *text, uint32_t c); /* as UTF-8 */
/* The character at `at` of valid UTF-8; moves *at past it. */
uint32_t mti_char(const char *text, size_t n, size_t *at);
/* Adds bytes with U+FFFD in place of each maximal part of a character, and of each byte of none.
 * partial: a last character that lacks bytes is left out; what was read is returned in *n_read. */
bool mti_text_repaired(mt_text *text, const char *bytes, size_t n, bool partial, size_t *n_read);

bool mti_text_is_valid(const char *text, size_t n); /* whether it is UTF-8 */
bool mti_tokens_add(mt_token_list *list, const mt_token_list *more);

/* ---- characters ---- */

typedef bool mti_char_fn(uint32_t c);
bool mti_char_is_space(uint32_t c); /* Unicode's White_Space */
bool mti_char_is_word(uint32_t c);  /* \w */
bool mti_char_is_number(uint32_t c);
bool mti_char_is_punctuation(uint32_t c); /* and the ASCII symbols, as BERT has it */
bool mti_char_is_mark(uint32_t c);
bool mti_char_is_accent(uint32_t c); /* a mark without a width of its own */
/* Adds the text in small letters; in a normal form: NFC, NFD, NFKC or NFKD. */
bool mti_text_lower(mt_text *out, const char *text, size_t n);
typedef enum mti_normal_form { MTI_NFC, MTI_NFD, MTI_NFKC, MTI_NFKD } mti_normal_form;
bool mti_text_form(mt_text *out, const char *text, size_t n, mti_normal_form form);
/* What BERT does first: drops controls, makes one kind of blank; puts blanks around ideographs. */
bool mti_text_clean(mt_text *out, const char *text, size_t n);
bool mti_text_ideographs(mt_text *out, const char *text, size_t n);
/* Byte-level BPE writes each byte as a character that can be seen; the reverse is -1 for others. */
uint32_t mti_byte_char(unsigned char byte);
int mti_char_byte(uint32_t c);

/* ---- patterns ---- */

/* What a step looks for: a text, characters of a kind, or a regular expression. */
typedef struct mti_pattern {
    mt_text literal;
    mti_char_fn *is; /* NULL: literal or regular */
    pcre2_code *regular;
} mti_pattern;
/* Work space of searches, which one thread uses at a time. */
typedef struct mti_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
} mti_matcher;
bool mti_matcher_open(mti_matcher *m);
void mti_matcher_close(mti_matcher *m);
/* A regular expression as Oniguruma reads it, which Hugging Face uses. What PCRE2 would read
 * otherwise is refused. */
bool mti_pattern_compile(mti_pattern *p, const char *text, size_t n);
void mti_pattern_free(mti_pattern *p);
/* The first match in text[n] that begins at *begin or later. 1: found, not empty; 0: none; -1: an
 * error. */
int mti_pattern_find(const mti_pattern *p, mti_matcher *m, const char *text, size_t n,
                     size_t *begin, size_t *end);

/* ---- steps ---- */

typedef enum mti_step_kind {
    /* of normalizers, and the first three of pre-tokenizers */
    MTI_REPLACE, /* what the pattern matches, by content; a decoder's, too */
    MTI_PREPEND, /* content, before what is not empty */
    MTI_BYTES,   /* mti_byte_char of each byte; a decoder's: the reverse */
    MTI_FORM,    /* which */
    MTI_LOWER,
    MTI_DROP, /* characters that the pattern matches */
    MTI_CLEAN,
    MTI_IDEOGRAPHS,
    MTI_TRIM, /* blanks at the ends: start, stop */
    /* of pre-tokenizers */
    MTI_SPLIT, /* at what the pattern matches: which, invert */
    /* of decoders */
    MTI_BYTE_TOKENS, /* tokens such as <0x0A> become their bytes */
    MTI_FUSE,        /* all become one */
    MTI_STRIP,       /* up to `start` and `stop` times content, a character, at a token's ends */
    MTI_BLANKS,      /* content becomes a blank; of the first token, with `start`, nothing */
    MTI_WORDS        /* a blank before each token but the first and those that begin with content */
} mti_step_kind;
typedef enum mti_behavior {
    MTI_REMOVED,
    MTI_ISOLATED,
    MTI_CONTIGUOUS,
    MTI_WITH_PREVIOUS,
    MTI_WITH_NEXT
} mti_behavior;
/* When a text is prepended: always; to what does not begin with it; to that at the text's
 * beginning alone. */
typedef enum mti_prepend { MTI_ALWAYS, MTI_UNLESS_THERE, MTI_FIRST_ALONE } mti_prepend;

typedef struct mti_text_step {
    mti_step_kind kind;
    int which; /* an mti_normal_form, mti_behavior or mti_prepend */
    bool invert, cleanup;
    size_t start, stop;
    mti_pattern pattern;
    mt_text content;
} mti_text_step;
typedef MTI_VEC(mti_text_step) mti_steps;
void mti_step_free(mti_text_step *step);
/* Adds what a step that divides nothing makes of a text; first: it stands at the beginning. */
bool mti_step_apply(const mti_text_step *s, mti_matcher *m, const char *text, size_t n, bool first,
                    mt_text *out);

/* ---- the vocabulary ---- */

typedef struct mti_token {
    size_t at, written_at; /* its text in `texts`, and what it is decoded to: see read_added */
    uint32_t n, written_n; /* bytes of these */
    bool there, in_model, special;
} mti_token;
typedef struct mti_vocabulary {
    mt_text texts; /* a zero byte behind each */
    MTI_VEC(mti_token) tokens;
    mti_hashmap by_text;
} mti_vocabulary;
#define MTI_NO_TOKEN UINT32_MAX
enum { MTI_SHOWN_BYTES = 60 }; /* of a token, in messages */
/* The token that is written `before` and then `text`, by mti_hash_bytes of both; or MTI_NO_TOKEN.
 * model: added tokens that the model has not are none. */
uint32_t mti_token_find(const mti_vocabulary *v, uint64_t hash, const char *before, size_t n_before,
                        const char *text, size_t n, bool model);
uint32_t mti_token_named(const mti_vocabulary *v, const char *text, size_t n, bool model);
/* Refuses an id that another text has, and one far above `most`, the number of tokens. */
bool mti_token_add(mti_vocabulary *v, const char *text, size_t n, int64_t id, bool model,
                   size_t most);
/* ---- the model ---- */

typedef enum mti_model_kind { MTI_BPE, MTI_WORDPIECE } mti_model_kind;
typedef struct mti_merge {
    uint32_t rank, id; /* of what the pair becomes */
} mti_merge;
/* Initial symbols of characters below this are looked up in a table. */
enum { MTI_SHORT_CHARS = 0x800 };
typedef struct mti_token_model {
    mti_model_kind kind;
    uint32_t unknown;       /* MTI_NO_TOKEN: none */
    mt_text prefix, suffix; /* of symbols within a word; of the last */
    bool fuse_unknown, byte_fallback, ignore_merges;
    size_t most_chars, longest; /* of a word; the most bytes that a token has */
    mti_hashmap pairs;          /* left << 32 | right -> place in merges */
    MTI_VEC(mti_merge) merges;
    uint32_t chars[MTI_SHORT_CHARS], bytes[256]; /* <0x00> to <0xFF> */
} mti_token_model;

/* ---- added tokens ---- */

typedef struct mti_added {
    uint32_t id;
    bool single_word, left, right; /* takes blanks on its left, on its right */
} mti_added;
/* A tree of texts. */
typedef struct mti_added_tokens {
    mti_hashmap next;     /* node << 8 | byte -> node; 0 is the root */
    MTI_VEC(size_t) ends; /* [node] 1 + place in `tokens`, 0: none */
    bool first[256];      /* whether one begins with the byte */
    MTI_VEC(mti_added) tokens;
} mti_added_tokens;
enum { MTI_ADDED_BYTES = 1024 }; /* the most that an added token has */
bool mti_added_add(mti_added_tokens *a, const char *text, size_t n, mti_added token);
void mti_added_free(mti_added_tokens *a);
/* The next token in text[n] that begins at *from or later, which becomes the place behind it. It
 * takes [*begin, *end) of the text, with blanks around it, but none before `least`. NULL: no more.
 */
const mti_added *mti_added_find(const mti_added_tokens *a, const char *text, size_t n, size_t least,
                                size_t *from, size_t *begin, size_t *end);

/* ---- all of it ---- */

struct mt_tokenizer {
    mti_vocabulary vocabulary;
    mti_token_model model;
    mti_added_tokens raw, normalized; /* looked for before and after normalizing */
    mti_steps normalizers, pre_tokenizers, decoders;
    mt_token_list before, after, ends;
    char *chat_template;
};

/* Patterns that several families share, as their files write them. */
#define MTI_GPT2_PATTERN                                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define MTI_LLAMA3_PATTERN(digits)                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Work space of the model, for a piece after the other. */
typedef struct mti_bpe mti_bpe;
mti_bpe *mti_bpe_new(void);
void mti_bpe_free(mti_bpe *work);
bool mti_bpe_encode(const mt_tokenizer *t, mti_bpe *work, const char *word, size_t n,
                    mt_token_list *ids);
bool mti_wordpiece_encode(const mt_tokenizer *t, const char *word, size_t n, mt_token_list *ids);
/* Adds what the normalizers make of a text. */
bool mti_normalize(const mt_tokenizer *t, mti_matcher *m, const char *text, size_t n, bool first,
                   mt_text *out);
/* Fills the model's tables once the vocabulary is there. */
void mti_model_finish(mt_tokenizer *t);
/* Adds a merge of the tokens left[n] and right[m]; one of the same two replaces it. 1: it is there;
 * 0: they are not two tokens that make a third; -1: out of memory. */
int mti_model_merge(mt_tokenizer *t, const char *left, size_t n, const char *right, size_t m,
                    uint32_t rank);
/* Adds a step without a pattern; content may be "". At most MTI_STEPS. NULL: it failed. */
enum { MTI_STEPS = 64 };
mti_text_step *mti_step_new(mti_steps *steps, mti_step_kind kind, int which, const char *content);
/* A tokenizer.json, a text of n bytes; name: of the file, for messages. */
mt_tokenizer *mti_tokenizer_parse(const char *name, const char *text, size_t n);
/* Puts the file's name before what the reader of its text has said. */
void mti_tokenizer_blame(const char *path);

#endif
