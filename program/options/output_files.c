/* output_files.c: no output may be the same file as an input or another output, which it would
 * overwrite without an error. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "io/hf_config.h"
#include "workload/routing.h"
#include "options/option_table.h"
#include "files/files.h"
#include "nn/model.h"

/* The file that a path leads to; one that does not exist is known by its folder and its name. */
typedef struct place {
    char option[40]; /* "--save" */
    const char *path;
    bool output, exists, regular, folder;
    dev_t device;
    ino_t number;
    char name[256]; /* in its folder */
} place;

typedef MTI_VEC(place) places;

/* ---- finding the files ---- */

/* False if its folder does not exist: then no other path leads to the file. */
static bool identify(place *p, const char *target)
{
    struct stat st;
    char folder[4096];
    if (stat(target, &st) == 0) {
        p->exists = true;
        p->regular = S_ISREG(st.st_mode), p->folder = S_ISDIR(st.st_mode);
    }
    const char *slash = strrchr(target, '/');
    snprintf(p->name, sizeof p->name, "%s", slash ? slash + 1 : target);
    if (!p->exists) {
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - target) + 1 : 1,
                 slash ? target : ".");
        if (stat(folder, &st) != 0) return false;
    }
    p->device = st.st_dev, p->number = st.st_ino;
    return true;
}

static bool add(places *all, const char *option, const char *path, bool output)
{
    place p = {.path = path, .output = output};
    snprintf(p.option, sizeof p.option, "%s", option);
    char *target = mti_path_target(path);
    if (!target && mt_last_status() == MT_ERR_MEMORY) return false;
    mt_clear_error(); /* a loop of links: opening it fails later */
    bool known = target && identify(&p, target);
    mti_free(target);
    return !known || MTI_PUSH(all, p);
}

static bool add_option(places *all, const mti_options *o, const mti_option_row *r)
{
    char option[40];
    const void *field = (const char *)o + r->at;
    snprintf(option, sizeof option, "--%s", r->name);
    if (!mti_takes_file(r) || !mti_takes(o->verb, r)) return true;
    if (r->form == MTI_LIST) {
        const mti_words *words = field;
        for (size_t i = 0; i < words->n; i++)
            if (!add(all, option, words->at[i], r->written)) return false;
        return true;
    }
    const char *path = *(const char *const *)field;
    bool to_stdout = r->id == MTI_O_JSON && path && !strcmp(path, "-");
    return !path || to_stdout || add(all, option, path, r->written);
}

static bool add_routing(places *all, const mti_options *o)
{
    mti_routing_kind kind;
    const char *file = NULL;
    if (o->workload.routing && !mti_routing_parse(o->workload.routing, &kind, &file)) return false;
    return !file || add(all, "--routing", file, false);
}

static bool add_model(places *all, const mti_options *o)
{
    bool from_file =
        mti_verb_builds(o->verb) && o->workload.name && mti_is_model_path(o->workload.name);
    if (!add_routing(all, o)) return false;
    if (!from_file) return true;
    char *file = mti_config_path(o->workload.name);
    const size_t n = all->n;
    bool ok = file && add(all, "MODEL", file, false);
    if (all->n > n) all->at[n].path = o->workload.name; /* as given; and `file` goes */
    mti_free(file);
    return ok;
}

/* Adds the models of all rows, if it is a sweep. */
static bool add_models(places *all, mti_options *o)
{
    if (o->verb != MTI_SWEEP) return add_model(all, o);
    mti_sweep_rows rows;
    bool ok = mti_sweep_rows_make(&rows, o);
    for (size_t i = 0; ok && i < rows.n; i++) ok = add_model(all, &rows.at[i].options);
    mti_sweep_rows_free(&rows);
    return ok;
}

/* The shell may have redirected standard output to a file that an option names, too. */
static bool add_stdout(places *all)
{
    struct stat st;
    if (fstat(STDOUT_FILENO, &st) != 0 || !S_ISREG(st.st_mode)) return true;
    const place p = {.option = "standard output",
                     .path = "",
                     .output = true,
                     .exists = true,
                     .regular = true,
                     .device = st.st_dev,
                     .number = st.st_ino};
    return MTI_PUSH(all, p);
}

/* ---- comparing ---- */

/* Devices and pipes may be written by many, and so may the folders of --save. */
static bool same(const place *a, const place *b)
{
    const bool model = a->folder && !strcmp(a->option, "--save-hf");
    if (a->exists != b->exists || a->device != b->device || a->number != b->number) return false;
    return a->exists ? a->regular || model : !strcmp(a->name, b->name);
}

/* Whether a is a folder for saves and b a file that they may write: "step-20.safetensors". */
static bool is_save_in(const place *a, const place *b)
{
    struct stat st;
    static const char end[] = ".safetensors";
    size_t digits = strncmp(b->name, "step-", 5) ? 0 : strspn(b->name + 5, "0123456789");
    if (!a->folder || !digits || strcmp(b->name + 5 + digits, end) != 0) return false;
    if (!b->exists) return b->device == a->device && b->number == a->number;
    char save[4096];
    snprintf(save, sizeof save, "%s/%s", a->path, b->name);
    return stat(save, &st) == 0 && st.st_dev == b->device && st.st_ino == b->number;
}

/* A resumed run may save to the file that it was resumed from. */
static bool resumes_in_place(const place *a, const place *b)
{
    return !strcmp(a->option, "--save") && !strcmp(b->option, "--resume");
}

static bool clash(mti_options *o, const place *a, const place *b)
{
    if (!a->output || resumes_in_place(a, b) || !(same(a, b) || is_save_in(a, b))) return false;
    mti_options_refuse(o, "%s%s%.300s: is the same file as %s%s%.300s; give another", a->option,
                       *a->path ? " " : "", a->path, b->option, *b->path ? " " : "", b->path);
    return true;
}

bool mti_files_apart(mti_options *o)
{
    places all = {0};
    bool ok = add_models(&all, o) && add_stdout(&all);
    for (size_t i = 0; ok && i < o->compare.files.n; i++)
        ok = add(&all, "FILE", o->compare.files.at[i], false);
    for (int id = 0; ok && id < MTI_OPTION_COUNT; id++)
        ok = add_option(&all, o, &mti_option_rows[id]);
    if (!ok && !*o->error) mti_options_refuse(o, "%.900s", mt_last_error());
    for (size_t i = 0; ok && i < all.n; i++)
        for (size_t j = 0; ok && j < all.n; j++) ok = i == j || !clash(o, &all.at[i], &all.at[j]);
    mti_free(all.at);
    return ok;
}
