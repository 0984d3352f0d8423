/* A GGUF file of a small llama: blocks, rows in pairs, scaled angles and tokens as they are here;
 * and refused memory. tests/parity/gguf_files.py compares with Transformers,
 * tests/program/verbs/folders.py has what is damaged. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "io/gguf.h"
#include "memtape/models/io.h"
#include "memtape/models/tokens.h"
#include "mtt.h"
#include "mtt_fixture.h"

enum { D = 32, F = 64, TOKENS = 5, HALF = 8 }; /* two heads of 16 */
enum { U32 = 4, I32 = 5, F32 = 6, TEXT = 8, ARRAY = 9 };

/* ---- the file ---- */

typedef struct bytes {
    unsigned char at[1 << 16];
    size_t n;
} bytes;

static void add(bytes *b, const void *data, size_t n)
{
    assert_true(b->n + n <= sizeof b->at);
    memcpy(b->at + b->n, data, n);
    b->n += n;
}

/* Little endian, as every machine that runs these tests. */
static void add_number(bytes *b, uint64_t value, size_t n) { add(b, &value, n); }

static void add_text(bytes *b, const char *text)
{
    add_number(b, strlen(text), 8);
    add(b, text, strlen(text));
}

static void add_key(bytes *b, const char *key, uint32_t type)
{
    add_text(b, key);
    add_number(b, type, 4);
}

static void add_whole(bytes *b, const char *key, uint32_t value)
{
    add_key(b, key, U32);
    add_number(b, value, 4);
}

static void add_real(bytes *b, const char *key, float value)
{
    add_key(b, key, F32);
    add(b, &value, 4);
}

static void add_array(bytes *b, const char *key, uint32_t of)
{
    add_key(b, key, ARRAY);
    add_number(b, of, 4);
    add_number(b, TOKENS, 8);
}

static void add_tokenizer(bytes *b)
{
    static const char *const texts[TOKENS] = {"<unk>", "a", "b", "ab", "\xe2\x96\x81"};
    static const int32_t types[TOKENS] = {2, 1, 1, 1, 1};
    static const float scores[TOKENS] = {0, -3, -4, -1, -2};
    add_key(b, "tokenizer.ggml.model", TEXT), add_text(b, "llama");
    add_array(b, "tokenizer.ggml.tokens", TEXT);
    for (int i = 0; i < TOKENS; i++) add_text(b, texts[i]);
    add_array(b, "tokenizer.ggml.scores", F32), add(b, scores, sizeof scores);
    add_array(b, "tokenizer.ggml.token_type", I32), add(b, types, sizeof types);
    add_whole(b, "tokenizer.ggml.unknown_token_id", 0);
    add_whole(b, "tokenizer.ggml.add_bos_token", 0);
}

typedef struct tensor {
    const char *name;
    uint64_t columns, rows; /* rows 0: a vector */
} tensor;

static const tensor tensors[] = {
    {"token_embd.weight", D, TOKENS},   {"output_norm.weight", D, 0},
    {"rope_freqs.weight", HALF, 0},     {"blk.0.attn_norm.weight", D, 0},
    {"blk.0.ffn_norm.weight", D, 0},    {"blk.0.attn_q.weight", D, D},
    {"blk.0.attn_k.weight", D, D},      {"blk.0.attn_v.weight", D, D},
    {"blk.0.attn_output.weight", D, D}, {"blk.0.ffn_gate.weight", D, F},
    {"blk.0.ffn_up.weight", D, F},      {"blk.0.ffn_down.weight", F, D},
};
enum { N_TENSORS = sizeof tensors / sizeof *tensors };

/* Llama 3.2's divisors of the frequencies of theta 10000. */
static float divisor(int pair)
{
    const double turns = 8192 * pow(10000, -pair / (double)HALF) / (2 * acos(-1.0));
    const double smooth = fmin(fmax((turns - 1) / 3, 0), 1);
    return (float)(1 / ((1 - smooth) / 32 + smooth));
}

/* Writes a tensor: of a matrix each element is its row's number; the down product is in blocks of
 * Q5_1, 2 code - 3. */
static void add_data(bytes *b, const tensor *t)
{
    if (strstr(t->name, "down")) {
        for (uint64_t block = 0; block < t->rows * t->columns / 32; block++) {
            add_number(b, 0x4000, 2), add_number(b, 0xC200, 2); /* f16: 2, -3 */
            add_number(b, 0xFFFF0000, 4);
            for (int i = 0; i < 16; i++) add_number(b, (uint64_t)(i << 4 | (15 - i)), 1);
        }
        return;
    }
    for (uint64_t i = 0; i < t->columns * (t->rows ? t->rows : 1); i++) {
        const float freq = strstr(t->name, "freqs") ? divisor((int)i) : (float)(i / t->columns);
        add(b, &freq, 4);
    }
}

static void add_tensors(bytes *b)
{
    uint64_t at = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        const tensor *t = &tensors[i];
        const bool blocks = strstr(t->name, "down");
        const uint64_t n = t->columns * (t->rows ? t->rows : 1);
        add_text(b, t->name);
        add_number(b, t->rows ? 2 : 1, 4), add_number(b, t->columns, 8);
        if (t->rows) add_number(b, t->rows, 8);
        add_number(b, blocks ? MTI_GGUF_Q5_1 : MTI_GGUF_F32, 4), add_number(b, at, 8);
        at += blocks ? n / 32 * 24 : n * 4; /* all are multiples of 32 */
    }
    while (b->n % 32) add_number(b, 0, 1);
    for (int i = 0; i < N_TENSORS; i++) add_data(b, &tensors[i]);
}

/* The caller removes it. */
static void write_file(char path[MTT_PATH + 8])
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", 1},
                 {"embedding_length", D},
                 {"feed_forward_length", F},
                 {"attention.head_count", 2},
                 {"context_length", 64}};
    char name[MTT_PATH], key[64];
    static bytes b;
    b.n = 0;
    add(&b, "GGUF", 4), add_number(&b, 3, 4);
    add_number(&b, N_TENSORS, 8), add_number(&b, 14, 8);
    add_key(&b, "general.architecture", TEXT), add_text(&b, "llama");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "llama.%s", sizes[i].key);
        add_whole(&b, key, sizes[i].value);
    }
    add_real(&b, "llama.rope.freq_base", 10000);
    add_real(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    add_tokenizer(&b);
    add_tensors(&b);
    mtt_temporary_file(name);
    unlink(name);
    snprintf(path, MTT_PATH + 8, "%s.gguf", name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.at, 1, b.n, f), b.n);
    fclose(f);
}

/* ---- tests ---- */

static void what_the_file_has_is_in_the_model(void **state)
{
    (void)state;
    char path[MTT_PATH + 8];
    write_file(path);
    mt_module *m = mt_model_open(device, path, NULL, NULL, 0);
    assert_non_null(m);
    const mt_model_config *c = mt_model_config_of(m);
    assert_true(c->tied && c->yarn_ramp == MT_RAMP_TURNS && fabs(c->yarn_factor - 32) < 1e-5);
    assert_true(c->yarn_context == 8192 && c->yarn_fast == 4 && c->yarn_slow == 1);
    double *q = mtt_doubles(mt_module_param(mt_module_find(m, "h.0.attn.q"), "weight"));
    double *down = mtt_doubles(mt_module_param(mt_module_find(m, "h.0.mlp.down"), "weight"));
    for (int row = 0; row < D; row++) /* of a head even rows, then odd ones */
        assert_true(q[row * D] == row / 16 * 16 + row % 8 * 2 + row % 16 / 8);
    for (int i = 0; i < F * D; i++) {
        const int in = i % 32, code = in < 16 ? 15 - in : in;
        assert_true(down[i] == 2 * code - 3);
    }
    free(q), free(down);
    mt_module_free(m);
    unlink(path);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    char path[MTT_PATH + 8];
    write_file(path);
    const size_t before = mtt_allocated(device);
    for (int reads = 0; reads < 2; reads++) {
        uint64_t n_refused = 0;
        bool reached = true;
        for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_module *m = reads ? NULL : mt_model_open(device, path, NULL, NULL, 0);
            mt_tokenizer *t = reads ? mti_gguf_tokenizer(path) : NULL;
            reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (!m && !t) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            n_refused += !m && !t;
            mt_clear_error();
            mt_module_free(m), mt_tokenizer_free(t);
            assert_int_equal(mtt_allocated(device), before);
        }
        assert_true(n_refused > 25);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(what_the_file_has_is_in_the_model),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
