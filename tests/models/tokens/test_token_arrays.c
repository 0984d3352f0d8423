/* Tokenizers from arrays, as a GGUF file has them: the same as from a file, those that rank pieces
 * by scores, and what is refused. */
#include <stdlib.h>
#include "encoded.h"
#include "mtt_fixture.h"
#include "tokens/token_arrays.h"

#define TEXT(s)                                                                                    \
    {                                                                                              \
        s, sizeof(s) - 1                                                                           \
    }

static void arrays_make_what_a_file_makes(void **state)
{
    (void)state;
    static const mti_token_text texts[] = {TEXT("l"),           TEXT("o"),  TEXT("w"),
                                           TEXT("\xC4\xA0"),    TEXT("lo"), TEXT("low"),
                                           TEXT("\xC4\xA0low"), TEXT("<s>")};
    static const mti_token_text merges[] = {TEXT("l o"), TEXT("lo w"), TEXT("\xC4\xA0 low")};
    static const int32_t types[] = {1, 1, 1, 1, 1, 1, 1, MTI_TOKEN_CONTROL};
    mti_token_arrays a = {.path = "x.gguf",
                          .model = "gpt2",
                          .pre = "gpt-2",
                          .n = 8,
                          .texts = texts,
                          .types = types,
                          .n_merges = 3,
                          .merges = merges,
                          .bos = 7,
                          .eos = 7,
                          .eot = -1,
                          .unknown = -1,
                          .add_bos = true,
                          .chat_template = "{{ x }}"};
    mt_tokenizer *t = mti_tokenizer_from_arrays(&a);
    assert_non_null(t);
    is_encoded(t, "low low<s>", "5 6 7");
    assert_string_equal(ids_of(t, "low", 3, true), "7 5");
    assert_string_equal(text_of(t, LIST(7, 5, 6), true), "low low");
    assert_string_equal(mt_tokenizer_chat_template(t), "{{ x }}");
    assert_int_equal(mt_tokenizer_ends(t, NULL), 1);
    mt_tokenizer_free(t);
    a.pre = "strange";
    assert_null(mti_tokenizer_from_arrays(&a));
    mtt_failed(MT_ERR_UNSUPPORTED, "x.gguf", "\"strange\"");
    a.model = "t5";
    assert_null(mti_tokenizer_from_arrays(&a));
    mtt_failed(MT_ERR_UNSUPPORTED, "\"t5\"");
    a.model = "gpt2", a.pre = "smollm", a.bos = 8;
    assert_null(mti_tokenizer_from_arrays(&a));
    mtt_failed(MT_ERR_FORMAT, "token 8");
}

static void scores_rank_every_way_to_divide_a_token(void **state)
{
    (void)state;
    static const mti_token_text texts[] = {TEXT("<unk>"),
                                           TEXT("<s>"),
                                           TEXT("<0xE2>"),
                                           TEXT("<0x82>"),
                                           TEXT("<0xAC>"),
                                           TEXT("a"),
                                           TEXT("b"),
                                           TEXT("\xE2\x96\x81"),
                                           TEXT("ab"),
                                           TEXT("\xE2\x96\x81"
                                                "a"),
                                           TEXT("ba"),
                                           TEXT("aba")};
    static const int32_t types[] = {2, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1};
    float scores[] = {0, 0, 0, 0, 0, -9, -9, -9, -1, -2, -1, -3};
    mti_token_arrays a = {.path = "x.gguf",
                          .model = "llama",
                          .n = 12,
                          .texts = texts,
                          .types = types,
                          .scores = scores,
                          .bos = 1,
                          .eos = -1,
                          .eot = -1,
                          .add_bos = true,
                          .add_space_prefix = true};
    mt_tokenizer *t = mti_tokenizer_from_arrays(&a);
    assert_non_null(t);
    is_encoded(t, "aba", "7 11"); /* "ab" and "ba" have one score: the left one, and then "aba" */
    is_encoded(t, "a ba", "9 7 10");
    is_encoded(t, "b\xE2\x82\xACx", "7 6 2 3 4 0");
    assert_string_equal(text_of(t, LIST(1, 7, 11, 2, 3, 4), true), "aba\xE2\x82\xAC");
    mt_tokenizer_free(t);
    scores[5] = strtof("nan", NULL);
    assert_null(mti_tokenizer_from_arrays(&a));
    mtt_failed(MT_ERR_FORMAT, "the score of token 5");
    a.scores = NULL;
    assert_null(mti_tokenizer_from_arrays(&a));
    mtt_failed(MT_ERR_FORMAT, "scores is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(arrays_make_what_a_file_makes),
        mtt_test(scores_rank_every_way_to_divide_a_token),
    };
    return cmocka_run_group_tests_name("token arrays", tests, mtt_open_device, mtt_close_device);
}
