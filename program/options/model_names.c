/* model_names.c: models as people and Hugging Face name them. */
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
    {"phi-3-mini-4k", "phi-3-mini"},
    {"tinyllama", "tinyllama-1.1b"},
    {"bert-base-uncased", "bert-base"},
    {"bert-large-uncased", "bert-large"},
    {"gpt2-small", "gpt2"},
    {"gpt-2-xl", "gpt2-xl"},
};

/* Endings that change no size. */
static const char *const endings[] = {"-instruct",      "-it",           "-chat", "-hf",
                                      "-base",          "-chat-v1.0",    "-v1.0", "-instruct-v0.1",
                                      "-instruct-v0.2", "-instruct-v0.3"};

static const char *preset_like(const char *name)
{
    for (size_t i = 0; mt_model_preset_name(i); i++)
        if (mti_same_word(mt_model_preset_name(i), name)) return mt_model_preset_name(i);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (mti_same_word(others[i].name, name)) return others[i].preset;
    return NULL;
}

const char *mti_preset_meant(const char *name)
{
    char text[96];
    const char *slash = strrchr(name, '/');
    mti_format(text, sizeof text, "%s", slash ? slash + 1 : name);
    const char *preset = preset_like(text);
    for (bool cut = true; !preset && cut;) {
        cut = false;
        for (size_t i = 0; !cut && i < sizeof endings / sizeof *endings; i++) {
            const size_t n = strlen(text), length = strlen(endings[i]);
            cut = n > length && !strcasecmp(text + n - length, endings[i]);
            if (!cut) continue;
            /* Keeps the version, which is a part of a Mistral's name. */
            const char *version = strstr(endings[i], "-v0");
            text[n - length] = 0;
            if (version) mti_append(text, sizeof text, "%s", version);
        }
        preset = preset_like(text);
    }
    return preset;
}
