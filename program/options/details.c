/* details.c: whose the keys are that follow a value after a colon, and how they are typed:
 * "gpt:untied,norm-kind=rmsnorm", "plain:swiglu=unfused", "adamw:clip=1", "h100:price=2". */
#include <string.h>
#include "options/option_table.h"

static const struct {
    const char *name, *owner, *typed, *example;
} owners[MTI_KEY_OWNERS] = {
    [MTI_KEY_MODEL] = {"model", "MODEL", "MODEL:", "gpt:untied,norm-kind=rmsnorm"},
    [MTI_KEY_RECIPE] = {"recipe", "--recipe",
                        "--recipe plain:", "--recipe plain:swiglu=unfused,rope=unfused"},
    [MTI_KEY_OPTIMIZER] = {"optimizer", "--optimizer",
                           "--optimizer NAME:", "--optimizer adamw:clip=1,warmup=100"},
    [MTI_KEY_GPU] = {"gpu", "--gpu", "--gpu NAME:", "--gpu h100:price=2.5"},
};

const char *mti_key_name(mti_key_of owner) { return owners[owner].name; }
const char *mti_key_example(mti_key_of owner) { return owners[owner].example; }
const char *mti_key_typed(mti_key_of owner) { return owners[owner].typed; }

const char *mti_key_owner(const mti_options *o, mti_key_of owner)
{
    return owner == MTI_KEY_MODEL && o->verb == MTI_TRAIN ? "--preset" : owners[owner].owner;
}

void mti_key_in_words(const mti_options *o, char *text, size_t size)
{
    const size_t n = strspn(text, "-abcdefghijklmnopqrstuvwxyz0123456789");
    char rest[1024];
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!r->key || !mti_takes(o->verb, r)) continue;
        if (strlen(r->name) + 2 != n || strncmp(text + 2, r->name, n - 2) != 0) continue;
        const size_t word = text[n] == ' ' ? strcspn(text + n + 1, " ") : 0;
        const bool value = word && text[n + word] == ':';
        const bool preset = r->key == MTI_KEY_MODEL && o->verb == MTI_TRAIN;
        snprintf(rest, sizeof rest, "%s", text + n + value);
        mti_format(text, size, "%s%s%s%s", preset ? "--preset NAME:" : owners[r->key].typed,
                   r->name, value ? "=" : "", rest);
        return;
    }
}

void mti_keys_note(mti_options *o, const mti_option_row *r, const char *value)
{
    char *text = o->former[r->key];
    mti_append(text, sizeof *o->former, "%s%s%s%s", *text ? "," : "", r->name, value ? "=" : "",
               value ? value : "");
}

void mti_keys_tell(const mti_options *o, FILE *out)
{
    const char *const names[MTI_KEY_OWNERS] = {
        [MTI_KEY_MODEL] = o->verb == MTI_TRAIN ? o->workload.preset : o->workload.name,
        [MTI_KEY_RECIPE] = "plain",
        [MTI_KEY_OPTIMIZER] = mti_optimizer_name(o->workload.optimizer),
        [MTI_KEY_GPU] = o->gpu.name};
    for (int k = MTI_KEY_MODEL; k < MTI_KEY_OWNERS; k++) {
        const char *of = mti_key_owner(o, (mti_key_of)k);
        if (*o->former[k])
            mti_print(out, "memtape: options that are keys of %s now: %s%s%s:%s\n", of,
                      *of == '-' ? of : "", *of == '-' ? " " : "", names[k] ? names[k] : "NAME",
                      o->former[k]);
    }
}
