/* lora_list.c: the adapters of a module as a file has them: names, tensors, and what describes
 * them. */
#include <stdio.h>
#include <string.h>
#include "io/hf_config.h"
#include "io/lora_file.h"

char *mti_lora_weight_name(const mt_module *m, const char *path, const char *part)
{
    char theirs[MTI_HF_NAME];
    const mt_model_config *c = mt_model_config_of(m);
    if (c && mti_hf_module_name(c, path, theirs)) path = theirs;
    const size_t n = strlen(MTI_LORA_PREFIX) + strlen(path) + strlen(part) + sizeof ".weight" + 1;
    char *name = mti_malloc(n);
    if (name) snprintf(name, n, MTI_LORA_PREFIX "%s.%s.weight", path, part);
    return name;
}

static bool same_kind(const mti_places *loras)
{
    const mti_lora *first = mt_module_user(loras->v.at[0].module);
    for (size_t i = 0; i < loras->v.n; i++) {
        const mti_lora *l = mt_module_user(loras->v.at[i].module);
        if (l->rank != first->rank || l->alpha != first->alpha || l->dropout != first->dropout)
            return mti_fail_bool(MT_ERR_UNSUPPORTED,
                                 "lora_save: %s has rank %lld, alpha %g, dropout %g; %s %lld, %g, "
                                 "%g; a file has one of each",
                                 loras->v.at[0].path, (long long)first->rank, first->alpha,
                                 first->dropout, loras->v.at[i].path, (long long)l->rank, l->alpha,
                                 l->dropout);
        if (strchr(loras->v.at[i].path, ','))
            return mti_fail_bool(MT_ERR_UNSUPPORTED, "lora_save: the path \"%s\" has a comma",
                                 loras->v.at[i].path);
    }
    return true;
}

/* All paths, separated by commas. */
static char *join_paths(const mti_places *loras)
{
    size_t n = 1;
    for (size_t i = 0; i < loras->v.n; i++) n += strlen(loras->v.at[i].path) + 1;
    char *text = mti_malloc(n), *end = text;
    for (size_t i = 0; text && i < loras->v.n; i++)
        end += snprintf(end, n - (size_t)(end - text), "%s%s", i ? "," : "", loras->v.at[i].path);
    return text;
}

static bool fill_list(mti_lora_list *list, const mt_module *m, const mti_places *loras)
{
    const mti_lora *l = mt_module_user(loras->v.at[0].module);
    list->kind = l;
    snprintf(list->rank, sizeof list->rank, "%lld", (long long)l->rank);
    mti_format(list->alpha, sizeof list->alpha, "%.17g", l->alpha);
    mti_format(list->dropout, sizeof list->dropout, "%.17g", l->dropout);
    list->targets = join_paths(loras);
    const mt_key_value pairs[] = {{MTI_KEY_RANK, list->rank},
                                  {MTI_KEY_ALPHA, list->alpha},
                                  {MTI_KEY_DROPOUT, list->dropout},
                                  {MTI_KEY_TARGETS, list->targets}};
    memcpy(list->pairs, pairs, sizeof pairs);
    list->n = 2 * loras->v.n;
    list->tensors = mti_calloc(list->n, sizeof *list->tensors);
    bool ok = list->targets && list->tensors;
    for (size_t i = 0; ok && i < list->n; i++) {
        const mti_place *p = &loras->v.at[i / 2];
        list->tensors[i].tensor = i % 2 ? mti_lora_b(p->module) : mti_lora_a(p->module);
        ok = (list->tensors[i].name =
                  mti_lora_weight_name(m, p->path, i % 2 ? MTI_LORA_B : MTI_LORA_A));
    }
    return ok;
}

bool mti_lora_list_make(mti_lora_list *list, mt_module *m)
{
    mti_places loras;
    *list = (mti_lora_list){0};
    bool ok = mti_places_find(&loras, m, mti_is_lora);
    if (ok && !loras.v.n) ok = mti_fail_bool(MT_ERR_STATE, "lora_save: the model has no adapters");
    ok = ok && same_kind(&loras) && fill_list(list, m, &loras);
    mti_places_free(&loras);
    return ok;
}

void mti_lora_list_free(mti_lora_list *list)
{
    for (size_t i = 0; list->tensors && i < list->n; i++) mti_free((char *)list->tensors[i].name);
    mti_free(list->tensors);
    mti_free(list->targets);
}

bool mti_lora_describe_target(mti_lora_described *d, const char *path)
{
    char *copy = mti_strdup(path);
    if (copy && MTI_PUSH(&d->targets, copy)) return true;
    mti_free(copy);
    return false;
}
