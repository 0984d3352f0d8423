/* test_failing_memory.c: each verb runs with its n-th request for memory refused, for some n; with
 * the sanitizers and in the long form for those that refusals.c plans. It reports that memory ran
 * out, frees everything (the sanitizers check) and leaves no half-written file. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "mtt.h"
#include "files/json_text.h"
#include "verbs/run_file.h"
#include "verbs/verbs.h"

typedef int verb_fn(const mti_options *o);

static char folder[32];
static char text_file[64], json_file[64], save_file[64], svg_file[64];
static char base_file[64], adapter_file[64];

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* Hides what the verb prints: it runs thousands of times. */
static int run_silently(verb_fn *verb, const mti_options *o)
{
    int out = dup(1), err = dup(2), null = open("/dev/null", O_WRONLY);
    assert_true(out >= 0 && err >= 0 && null >= 0);
    fflush(stdout);
    dup2(null, 1);
    dup2(null, 2);
    int status = verb(o);
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
    close(out), close(err), close(null);
    return status;
}

/* If there is a checkpoint it is complete, whatever request was refused after it. */
static void assert_whole_or_absent(const char *path)
{
    if (!exists(path)) return;
    mt_clear_error();
    mt_safetensors *file = mt_safetensors_open(path);
    assert_non_null(file);
    mt_model_config config;
    assert_true(mti_run_read_config(path, &config));
    assert_true(mt_safetensors_count(file) > 3 * 12); /* weights, and two states of each */
    mt_safetensors_free(file);
    unlink(path);
}

/* A profile whose memory was refused writes who held memory, and nothing else. */
static void assert_refusal_or_absent(const char *path)
{
    if (!exists(path)) return;
    json_t *report = json_load_file(path, 0, NULL);
    assert_true(json_is_object(json_object_get(report, "out_of_memory")));
    assert_null(json_object_get(report, "saved"));
    json_decref(report);
    unlink(path);
}

/* Runs once with request `nth` refused; true if the run made fewer requests. */
static bool run_once(verb_fn *verb, const mti_options *o, const char *product, uint64_t nth)
{
    mti_fail_nth_alloc(nth);
    int status = run_silently(verb, o);
    bool reached = mti_alloc_count() >= nth;
    mti_fail_nth_alloc(0);
    if (status == MTI_EXIT_OK) { /* the pool asked for a refused segment again, and got it */
        assert_int_equal(mt_last_status(), MT_OK);
        assert_true(!product || exists(product));
        if (product && reached) unlink(product);
        return !reached;
    }
    assert_int_equal(status, MTI_EXIT_FAILED);
    if (verb == mti_serve && mt_last_status() == MT_OK) { /* the device is full: that is a result */
        assert_true(exists(product));
        unlink(product);
        return false;
    }
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    assert_true(*mt_last_error() != 0);
    if (product == save_file)
        assert_whole_or_absent(product); /* the request may have been refused after the save */
    else if (verb == mti_profile && product)
        assert_refusal_or_absent(product);
    else
        assert_false(product && exists(product));
    mt_clear_error();
    return false;
}

/* The next request to refuse. Only with the sanitizers does the long form follow a plan, for every
 * fourth command: without them a leak is not found, and `./run test --all` runs both. */
#ifdef __SANITIZE_ADDRESS__
enum { FINDS_LEAKS = true };
#else
enum { FINDS_LEAKS = false };
#endif
static bool follows_plan;
static size_t n_commands;

static uint64_t next_refusal(uint64_t nth)
{
    if (follows_plan) return mtt_next_refusal(nth);
    return nth + (nth < 32 ? 1 : mtt_long() && !FINDS_LEAKS ? 7 : 29);
}

typedef struct command {
    verb_fn *verb;
    mti_options options;
    const char *product;
} command;

static void run_whole(void *arg)
{
    command *c = arg;
    if (!run_once(c->verb, &c->options, c->product, UINT64_MAX)) abort();
    if (c->product) unlink(c->product);
}

/* words: a command line; product: the file that the verb writes, or NULL. */
static void refuse_each(mti_verb id, verb_fn *verb, char **words, const char *product)
{
    command c = {.verb = verb, .product = product};
    int n_words = 0;
    while (words[n_words]) n_words++;
    assert_true(mti_options_parse(&c.options, mti_verb_rules_of(id), NULL, n_words, words));
    follows_plan = FINDS_LEAKS && mtt_turn(n_commands++);
    if (follows_plan) mtt_plan_refusals(run_whole, &c);
    bool whole = false;
    uint64_t nth = 1, n_runs = 0;
    for (; !whole; nth = next_refusal(nth), n_runs++)
        whole = run_once(verb, &c.options, product, nth);
    assert_true(nth > 50 && n_runs > 30); /* many requests were refused */
    if (product) unlink(product);
    mti_options_free(&c.options);
}

#define WORDS(...) ((char *[]){"memtape", __VA_ARGS__, NULL})
#define SMALL_MLP  "-b", "1", "-s", "4", "-d", "4"
#define SMALL      SMALL_MLP, "-a", "2"

static void profile_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(
        MTI_PROFILE, mti_profile,
        WORDS("block", SMALL, "--attention", "math", "--optimizer", "adamw", "--json", json_file),
        json_file);
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("block", SMALL, "--optimizer", "adamw", "--timeline", "--json", json_file),
                json_file);
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("mlp", SMALL_MLP, "--inference", "--trace", json_file), NULL);
    unlink(json_file);
    refuse_each(MTI_PROFILE, mti_profile, WORDS("mlp", SMALL_MLP, "--snapshot", json_file), NULL);
    unlink(json_file);
    refuse_each(MTI_PROFILE, mti_profile, WORDS("mlp", SMALL_MLP, "--svg", svg_file), NULL);
    unlink(svg_file);
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("mlp", SMALL_MLP, "--device", "meta", "--html", svg_file), NULL);
    unlink(svg_file);
}

/* A model with all that a llama may have, read from a folder. */
static void profile_of_a_folder_reports_every_refusal(void **state)
{
    (void)state;
    char config[96];
    snprintf(config, sizeof config, "%s/config.json", folder);
    FILE *f = fopen(config, "w");
    assert_non_null(f);
    fputs("{\"model_type\":\"gemma2\",\"vocab_size\":5,\"hidden_size\":4,\"intermediate_size\":3,"
          "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
          "\"head_dim\":2,\"max_position_embeddings\":4,\"unsloth_fixed\":true}",
          f);
    fclose(f);
    refuse_each(MTI_PROFILE, mti_profile, WORDS(folder, "-b", "1", "-s", "2"), NULL);
    unlink(config);
}

static void explain_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_EXPLAIN, mti_explain, WORDS("gpt", SMALL, "-l", "1"), NULL);
    refuse_each(MTI_EXPLAIN, mti_explain,
                WORDS("--expr", "mse(gelu(((x+2)@w1)+3)*w2, y)", "--shapes",
                      "x=2x3,w1=3x4,w2=4,y=2x4", "--no-grad", "x,y", "--weights", "w1"),
                NULL);
}

static void profile_with_memory_options_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("gpt", SMALL, "-l", "2", "--checkpoint", "full", "--offload", "cpu",
                      "--dropout", "0.1", "--json", json_file),
                json_file);
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("block", "-s", "32", "-d", "16", "-a", "2", "--compress", "8bit+seed",
                      "--dropout", "0.1"),
                NULL);
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("gpt", SMALL, "--amp", "bf16", "--lora-rank", "1", "--lora-targets", "qkv,fc",
                      "--qlora", "--optimizer", "adamw", "--loss-scale", "dynamic"),
                NULL);
}

static void modules_made_again_report_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("moe-tiny", "-b", "1", "-s", "4", "-d", "8", "-a", "2", "-l", "1", "--ffn",
                      "8", "--vocab", "9", "--recipe",
                      "plain:recompute-modules=moe_act+layernorm+core_attn"),
                NULL);
}

static void sweep_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_SWEEP, mti_sweep,
                WORDS("mlp", "-b", "1", "-s", "4", "-d", "4", "--over", "act=relu,gelu", "--row",
                      "full: --checkpoint full", "--steps", "1", "--svg", svg_file),
                svg_file);
    refuse_each(MTI_SWEEP, mti_sweep,
                WORDS("mlp", "-b", "1", "-s", "4", "-d", "4", "--over", "act=relu,gelu", "--steps",
                      "1", "--json", json_file),
                json_file);
}

static void plan_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_PLAN, mti_planner,
                WORDS("gpt", SMALL, "-l", "1", "--vocab", "9", "--kv", "0", "--tokens", "1G",
                      "--flops-rate", "1T", "--json", json_file),
                json_file);
    refuse_each(MTI_PLAN, mti_planner, WORDS("block", SMALL), NULL);
    refuse_each(MTI_PLAN, mti_planner, WORDS("mlp", SMALL_MLP, "--capacity", "4MiB", "-q"), NULL);
}

static void rank_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("gpt", SMALL, "-l", "2", "--vocab", "9", "--tp", "2", "--sp", "--pp", "2",
                      "--dp", "2", "--zero", "3", "--device", "meta", "--json", json_file),
                json_file);
    refuse_each(MTI_PROFILE, mti_profile,
                WORDS("gpt", SMALL, "-l", "2", "--vocab", "9", "--dp", "2", "--recipe", "fsdp2",
                      "--device", "meta", "--json", json_file),
                json_file);
}

static void fit_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_FIT, mti_fit,
                WORDS("gpt", SMALL, "--batch", "2", "-l", "1", "--vocab", "9", "--gpus", "2",
                      "--gpu", "h100", "--pp", "1", "--zero", "1", "--checkpoint", "none", "--json",
                      json_file),
                json_file);
}

static void serve_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_SERVE, mti_serve,
                WORDS("gpt", "-s", "256", "-d", "256", "-a", "2", "-l", "1", "--vocab", "9",
                      "--capacity", "8MiB", "--weights", "nf4", "--kv-cache", "paged", "--json",
                      json_file),
                json_file);
}

/* A snapshot and a log, which are read before anything is measured. */
static void compare_reports_every_refusal(void **state)
{
    (void)state;
    mti_options o;
    char **words = WORDS("mlp", SMALL_MLP, "--device", "meta", "-q", "--snapshot", base_file);
    assert_true(mti_options_parse(&o, mti_verb_rules_of(MTI_PROFILE), NULL, 13, words));
    assert_int_equal(run_silently(mti_profile, &o), MTI_EXIT_OK);
    mti_options_free(&o);
    FILE *f = fopen(adapter_file, "w");
    assert_non_null(f);
    fputs("{\"a\": {\"max_memory_reserved\": 3000000}}", f);
    fclose(f);
    refuse_each(MTI_COMPARE, mti_compare_verb,
                WORDS(base_file, adapter_file, "mlp", SMALL_MLP, "--json", json_file), json_file);
    f = fopen(adapter_file, "w");
    assert_non_null(f);
    fputs(
        "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 4.00 MiB total capacity; 1.00 MiB "
        "already allocated; 512.00 KiB free; 2.00 MiB reserved in total by PyTorch)",
        f);
    fclose(f);
    refuse_each(MTI_COMPARE, mti_compare_verb,
                WORDS(adapter_file, "gpt", SMALL, "-l", "1", "--json", json_file), json_file);
    unlink(base_file), unlink(adapter_file);
}

static void train_reports_every_refusal(void **state)
{
    (void)state;
    refuse_each(MTI_TRAIN, mti_train,
                WORDS("--data", text_file, SMALL, "-l", "1", "--steps", "2", "--save", save_file),
                save_file);
    unlink(save_file);
    refuse_each(
        MTI_TRAIN, mti_train,
        WORDS("--data", text_file, SMALL, "-l", "1", "--steps", "2", "--snapshot", json_file),
        NULL);
    unlink(json_file);
}

static void resume_and_generate_report_every_refusal(void **state)
{
    (void)state;
    mti_options o;
    char **words =
        WORDS("--data", text_file, SMALL, "-l", "1", "--steps", "1", "--save", save_file);
    assert_true(mti_options_parse(&o, mti_verb_rules_of(MTI_TRAIN), NULL, 17, words));
    assert_int_equal(run_silently(mti_train, &o), MTI_EXIT_OK);
    mti_options_free(&o);
    refuse_each(MTI_TRAIN, mti_train,
                WORDS("--data", text_file, "--resume", save_file, "--steps", "2"), NULL);
    refuse_each(MTI_GENERATE, mti_generate, WORDS("--model", save_file, "--tokens", "3"), NULL);
    unlink(save_file);
}

static void adapters_report_every_refusal(void **state)
{
    (void)state;
    mti_options o;
    char **words =
        WORDS("--data", text_file, SMALL, "-l", "1", "--steps", "1", "--save", base_file);
    assert_true(mti_options_parse(&o, mti_verb_rules_of(MTI_TRAIN), NULL, 17, words));
    assert_int_equal(run_silently(mti_train, &o), MTI_EXIT_OK);
    mti_options_free(&o);
    char **adapt = WORDS("--data", text_file, "--from", base_file, "-b", "1", "--lora-rank", "1",
                         "--loss-scale", "dynamic", "--steps", "1", "--save-adapter", adapter_file);
    refuse_each(MTI_TRAIN, mti_train, adapt, NULL);
    refuse_each(MTI_GENERATE, mti_generate,
                WORDS("--model", base_file, "--adapter", adapter_file, "--merge", "--tokens", "2"),
                NULL);
    words = WORDS("--data", text_file, "--from", base_file, "-b", "1", "--lora-rank", "1",
                  "--qlora", "--loss-scale", "8", "--steps", "1", "--save", save_file);
    assert_true(mti_options_parse(&o, mti_verb_rules_of(MTI_TRAIN), NULL, 16, words));
    assert_int_equal(run_silently(mti_train, &o), MTI_EXIT_OK);
    mti_options_free(&o);
    refuse_each(MTI_TRAIN, mti_train,
                WORDS("--data", text_file, "--resume", save_file, "--steps", "2"), NULL);
    refuse_each(MTI_TRAIN, mti_train,
                WORDS("--data", text_file, "--from", save_file, "-b", "1", "--steps", "1"), NULL);
    unlink(save_file), unlink(base_file), unlink(adapter_file);
}

/* jansson 2.14 asserts, or reads past its buffer, if that cannot grow: at a string's end as well.
 */
static void json_of_strings_of_any_length_reports_every_refusal(void **state)
{
    (void)state;
    char text[256];
    for (int n = 1; n <= 40; n++) {
        snprintf(text, sizeof text, "{\"%.*s\": [\"\\u00e9%.*s\", 1]}", n,
                 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", n,
                 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
        bool whole = false;
        for (uint64_t nth = 1; !whole; nth++) {
            mt_clear_error();
            mti_fail_nth_alloc(nth);
            json_t *root = mti_json_read(text, strlen(text), NULL);
            whole = mti_alloc_count() < nth;
            mti_fail_nth_alloc(0);
            assert_int_equal(root != NULL, whole);
            assert_int_equal(mt_last_status(), whole ? MT_OK : MT_ERR_MEMORY);
            json_decref(root);
        }
    }
    mt_clear_error();
}

static int set_up(void **state)
{
    (void)state;
    /* Thousands of files are synced: use a folder in memory where there is one. */
    snprintf(folder, sizeof folder, "%s/memtape-cli-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder)) return -1;
    snprintf(text_file, sizeof text_file, "%s/text", folder);
    snprintf(svg_file, sizeof svg_file, "%s/svg", folder);
    snprintf(json_file, sizeof json_file, "%s/json", folder);
    snprintf(base_file, sizeof base_file, "%s/base", folder);
    snprintf(adapter_file, sizeof adapter_file, "%s/adapter", folder);
    snprintf(save_file, sizeof save_file, "%s/save", folder);
    FILE *f = fopen(text_file, "w");
    if (!f) return -1;
    for (int i = 0; i < 40; i++) fputs("some text ", f);
    json_set_alloc_funcs(mti_json_malloc, mti_free);
    return fclose(f);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(text_file);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_of_strings_of_any_length_reports_every_refusal),
        cmocka_unit_test(profile_reports_every_refusal),
        cmocka_unit_test(profile_of_a_folder_reports_every_refusal),
        cmocka_unit_test(explain_reports_every_refusal),
        cmocka_unit_test(profile_with_memory_options_reports_every_refusal),
        cmocka_unit_test(modules_made_again_report_every_refusal),
        cmocka_unit_test(sweep_reports_every_refusal),
        cmocka_unit_test(plan_reports_every_refusal),
        cmocka_unit_test(rank_reports_every_refusal),
        cmocka_unit_test(fit_reports_every_refusal),
        cmocka_unit_test(serve_reports_every_refusal),
        cmocka_unit_test(compare_reports_every_refusal),
        cmocka_unit_test(train_reports_every_refusal),
        cmocka_unit_test(resume_and_generate_report_every_refusal),
        cmocka_unit_test(adapters_report_every_refusal),
    };
    return cmocka_run_group_tests_name("program, failing memory", tests, set_up, tear_down);
}
