/* corpus.h: text as bytes or tokens, split into a training part and a held-out part. */
#ifndef MTI_TRAINER_CORPUS_H
#define MTI_TRAINER_CORPUS_H

#include "files/files.h"
#include "trainer/codec.h"

/* One of the two parts. */
typedef struct mti_part_text {
    MTI_VEC(size_t) ends; /* of its documents, in bytes, or tokens */
    mt_token_list ids;    /* with a tokenizer */
} mti_part_text;

typedef struct mti_corpus {
    unsigned char *train, *held; /* the heads and the tails of all files */
    size_t n_train, n_held, n_files;
    uint64_t fingerprint;       /* of both parts */
    mti_part_text learnt, kept; /* of `train`, of `held` */
    bool in_tokens;             /* not in bytes */
    MTI_VEC(char *) paths;      /* as given, from the root */
    struct {
        struct mti_file_id *at;
        size_t n, cap;
    } files; /* that the text came from */
} mti_corpus;

/* The last `held_fraction` of each file is held out. Files may hold any bytes. A file is a
 * document; of a .jsonl file each line is one, an object with "text", or with "prompt" and
 * "completion". Of a folder (refused unless `folders`) all text files are read in order of name,
 * without hidden files, links, build folders and files with a zero byte. */
bool mti_corpus_load(mti_corpus *c, size_t n_paths, const char *const *paths, double held_fraction,
                     bool folders);
void mti_corpus_free(mti_corpus *c);
/* From now on the text is these tokens; after each document comes the token that ends a text, if
 * the tokenizer has one. */
bool mti_corpus_encode(mti_corpus *c, const mt_tokenizer *t);
/* How many tokens a part has, and the i-th. */
size_t mti_corpus_length(const mti_corpus *c, bool held);
int64_t mti_corpus_token(const mti_corpus *c, bool held, size_t i);
/* Document i of what is learnt from, of *n: its tokens, at least two, are those from *begin to
 * *end. A shorter one is passed over for the next; *end 0: all are shorter. */
void mti_corpus_document(const mti_corpus *c, size_t i, size_t *begin, size_t *end);
size_t mti_corpus_documents(const mti_corpus *c);
/* Whether the text came from that file. */
bool mti_corpus_has(const mti_corpus *c, const char *path);

/* Bits per byte on the held-out part of models that only count, fitted on the training part. */
typedef struct mti_baselines {
    double uniform; /* 8 */
    double unigram; /* Witten-Bell smoothed towards uniform */
    double bigram;  /* Witten-Bell smoothed towards the unigram model */
} mti_baselines;
/* Every held-out byte but the first is predicted, as a language model does. */
bool mti_baselines_fit(mti_baselines *b, const mti_corpus *c);

#endif
