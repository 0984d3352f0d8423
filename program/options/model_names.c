/* model_names.c: models as people and Hugging Face name them. */
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include "options/option_table.h"
#include "memtape/models/model.h"

/* Other names of the same sizes. */
static const struct {
    const char *name, *preset;
} others[] = {
    {"llama-3-8b", "llama-3.1-8b"},
    {"meta-llama-3-8b", "llama-3.1-8b"},
    {"llama-3-70b", "llama-3.1-70b"},
    {"meta-llama-3-70b", "llama-3.1-70b"},
    {"llama-3.3-70b", "llama-3.1-70b"},
    {"meta-llama-3.1-8b", "llama-3.1-8b"},
    {"llama2-7b", "llama-2-7b"},
    {"meta-llama-3.1-70b", "llama-3.1-70b"},
    {"llama-1-7b", "llama-7b"},
    {"mistral-7b-v0.3", "mistral-7b"},
    {"mistral-7b-v0.2", "mistral-7b-v0.1"},
    {"mixtral-8x7b-v0.1", "mixtral-8x7b"},
    {"mistral-nemo", "mistral-nemo-12b"},
    {"mistral-small-3.1-24b", "mistral-small-24b"}, /* as 3.2: its text */
    {"mistral-small-3.2-24b", "mistral-small-24b"},
    {"magistral-small", "mistral-small-24b"},
    {"devstral-small", "mistral-small-24b"},
    {"qwen3-coder-30b-a3b", "qwen3-30b-a3b"},
    {"deepseek-v3.1", "deepseek-v3"},
    {"deepseek-r1", "deepseek-v3"},
    {"glm-4.6", "glm-4.5"},
    {"phi-3-mini-4k", "phi-3-mini"},
    {"phi-3-mini-128k", "phi-3.5-mini"},
    {"tinyllama", "tinyllama-1.1b"},
    {"bert-base-uncased", "bert-base"},
    {"bert-large-uncased", "bert-large"},
    {"gpt2-small", "gpt2"},
    {"gpt-2-xl", "gpt2-xl"},
    {"vicuna-7b-v1.3", "llama-7b"},
    {"vicuna-13b-v1.3", "llama-13b"},
    {"vicuna-33b-v1.3", "llama-33b"},
    {"vicuna-7b", "llama-2-7b"},
    {"vicuna-13b", "llama-2-13b"},
    {"zephyr-7b-beta", "mistral-7b-v0.1"},
    {"qwq-32b", "qwen2.5-32b"},
    {"mathstral-7b-v0.1", "mistral-7b"},
    {"codestral-22b-v0.1", "codestral-22b"},
    {"mistral-small-instruct-2409", "codestral-22b"}, /* the first, of 22B */
    {"mistral-large", "mistral-large-123b"},
    {"mixtral-8x22b-v0.1", "mixtral-8x22b"},
    {"deepseek-v2.5", "deepseek-v2"},
    {"deepseek-coder-v2", "deepseek-v2"},
    {"deepseek-coder-v2-lite", "deepseek-v2-lite"},
    {"deepseek-coder-7b", "deepseek-llm-7b"}, /* v1.5 */
    {"deepseek-math-7b", "deepseek-llm-7b"},
    {"open-llama-7b", "llama-7b"},
    {"open-llama-13b", "llama-13b"},
    {"olmo-2-0325-32b", "olmo-2-32b"},
    {"olmo-2-0425-1b", "olmo-2-1b"},
    {"olmo-3-1025-7b", "olmo-3-7b"},
    {"olmo-3-1125-32b", "olmo-3-32b"},
    {"olmo-3.1-32b", "olmo-3-32b"},
    {"llama-guard-3-8b", "llama-3.1-8b"},
    {"deepseek-r1-0528-qwen3-8b", "qwen3-8b"},
    {"dialogpt-small", "gpt2"},
    {"qwen2-vl-2b", "qwen2.5-1.5b"},
    {"qwen3-vl-2b", "qwen3-1.7b"},
};

/* Beginnings of families that have the sizes of another one, as what was trained on from it. */
static const struct {
    const char *name, *preset;
} families[] = {
    {"meta-llama-", "llama-"},
    {"deepseek-r1-distill-llama-", "llama-3.1-"},
    {"deepseek-r1-distill-qwen-", "qwen2.5-"},
    {"qwen2.5-coder-", "qwen2.5-"},
    {"qwen2.5-math-", "qwen2.5-"},
    {"qwen2.5-vl-", "qwen2.5-"},
    {"qwen2-vl-", "qwen2.5-"},
    {"qwen3-vl-", "qwen3-"},
    {"qwen2-", "qwen2.5-"},
    {"olmo-2-1124-", "olmo-2-"},
    {"yi-1.5-", "yi-"},
    {"yi-coder-", "yi-"},
    {"smollm-", "smollm2-"},
    {"codegemma-", "gemma-"},
    {"gemma-1.1-", "gemma-"},
    {"hermes-3-llama-", "llama-"},
    {"dialogpt-", "gpt2-"},
};

/* Beginnings of models of more than text, of which a preset is the text model. */
static const char *const sighted[] = {"gemma-3-4b",         "gemma-3-12b",        "gemma-3-27b",
                                      "mistral-small-3.1-", "mistral-small-3.2-", "qwen2-vl-",
                                      "qwen2.5-vl-",        "qwen3-vl-"};

bool mti_is_more_than_text(const char *name)
{
    const char *slash = strrchr(name, '/');
    for (size_t i = 0; i < sizeof sighted / sizeof *sighted; i++)
        if (mti_after(sighted[i], slash ? slash + 1 : name)) return true;
    return false;
}

/* Endings that change no size. */
static const char *const endings[] = {"-instruct",      "-it",
                                      "-chat",          "-hf",
                                      "-base",          "-chat-v1.0",
                                      "-v1.0",          "-v1.5",
                                      "-preview",       "-thinking",
                                      "-reasoning",     "-instruct-v0.1",
                                      "-instruct-v0.2", "-instruct-v0.3",
                                      "-think",         "-sft",
                                      "-dpo",           "-v0",
                                      "-deduped"};

/* Endings of repositories whose files keep the same weights in fewer bits. */
static const char *const coded[] = {
    "-unsloth-bnb-4bit", "-bnb-4bit",  "-bnb-8bit", "-4bit", "-8bit", "-awq",
    "-gptq-int4",        "-gptq-int8", "-gptq",     "-gguf", "-fp8"};

/* Takes off one of n endings: its place in the list, or -1. */
static int cut_ending(char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(name), end = strlen(list[i]);
        if (length <= end || strcasecmp(name + length - end, list[i]) != 0) continue;
        name[length - end] = 0;
        return (int)i;
    }
    return -1;
}

/* Takes off the month, or the day, of a release: "-2507". */
static bool cut_date(char *name)
{
    const size_t length = strlen(name);
    if (length < 5 || name[length - 5] != '-' || strspn(name + length - 4, "0123456789") != 4)
        return false;
    name[length - 5] = 0;
    return true;
}

/* "opt 13b" could be opt-1.3b, too: it is neither. */
static const char *preset_named(const char *name)
{
    const char *found = NULL, *preset;
    int n = 0;
    for (size_t i = 0; (preset = mt_model_preset_name(i)); i++) {
        if (!strcasecmp(preset, name)) return preset;
        if (mti_same_word(preset, name)) found = preset, n++;
    }
    if (n) return n == 1 ? found : NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (mti_same_word(others[i].name, name)) return others[i].preset;
    return NULL;
}

static const char *preset_like(const char *name)
{
    const char *preset = preset_named(name);
    for (size_t i = 0; !preset && i < sizeof families / sizeof *families; i++) {
        const size_t n = strlen(families[i].name);
        char text[96];
        mti_format(text, sizeof text, "%s%s", families[i].preset,
                   name + (strlen(name) > n ? n : 0));
        if (!strncasecmp(name, families[i].name, n)) preset = preset_named(text);
    }
    return preset;
}

const char *mti_preset_meant(const char *name, bool *in_fewer_bits)
{
    char text[96];
    const char *slash = strrchr(name, '/'), *preset;
    mti_format(text, sizeof text, "%s", slash ? slash + 1 : name);
    *in_fewer_bits = cut_ending(text, coded, sizeof coded / sizeof *coded) >= 0;
    while (!(preset = preset_like(text))) {
        if (cut_date(text)) continue;
        const int i = cut_ending(text, endings, sizeof endings / sizeof *endings);
        if (i < 0) break;
        /* Keeps the version, which is a part of a Mistral's name. */
        const char *version = strstr(endings[i], "-v0");
        if (version) mti_append(text, sizeof text, "%s", version);
    }
    return preset;
}

/* Whether the preset begins with the family's letters, and one of its parts is the size. */
static bool is_of_size(const char *preset, const char *family, size_t letters, const char *size)
{
    if (letters &&
        (strncasecmp(preset, family, letters) != 0 || isalpha((unsigned char)preset[letters])))
        return false;
    for (const char *part = strchr(preset, '-'); part; part = strchr(part + 1, '-'))
        if (!strncasecmp(part + 1, size, strlen(size)) &&
            !isalnum((unsigned char)part[1 + strlen(size)]))
            return true;
    return false;
}

/* "llama3" is not how llama-33b begins. */
static bool begins(const char *word, const char *preset)
{
    const char *rest = mti_after(word, preset);
    return rest && !(isdigit((unsigned char)*rest) && isdigit((unsigned char)rest[-1]));
}

#define MOST_NEAR 4

void mti_presets_near(char *out, size_t size, const char *name)
{
    size_t letters = 0;
    while (isalpha((unsigned char)name[letters])) letters++;
    const char *rest = name + letters + strspn(name + letters, "-_. /:");
    const bool sized = (!letters || rest > name + letters) && isdigit((unsigned char)*rest) &&
                       !strcasecmp(rest + strspn(rest, "0123456789."), "b");
    const char *found[MOST_NEAR], *preset;
    int n = 0;
    for (size_t i = 0; (letters > 2 || sized) && (preset = mt_model_preset_name(i)); i++) {
        if (!begins(name, preset) && !(sized && is_of_size(preset, name, letters, rest))) continue;
        if (n < MOST_NEAR) found[n] = preset;
        n++;
    }
    const int named = n > MOST_NEAR ? MOST_NEAR - 1 : n;
    *out = 0;
    for (int i = 0; i < named; i++)
        mti_append(out, size, "%s%s", !i ? "" : i + 1 < n ? ", " : " or ", found[i]);
    if (named < n) mti_append(out, size, " or %d others", n - named);
}
