/* readings_json.c: figures in JSON: PEFT's results, Megatron-LM's golden values, and any object
 * that has a number under such a name. */
#include <math.h>
#include <string.h>
#include "compare/readings.h"
#include "files/json_text.h"

typedef struct walk {
    mti_readings *out;
    const char *path;
} walk;

/* The end of the path of keys is what tells figures apart. */
static bool add(const walk *w, mti_reading_kind kind, const char *name, int64_t step,
                const json_t *value)
{
    const double bytes = json_number_value(value);
    mti_reading f = {.kind = kind, .step = step};
    const size_t n = strlen(name);
    if (!json_is_number(value) || !(bytes >= 0 && bytes < 0x1p60)) return true;
    snprintf(f.name, sizeof f.name, "%s", name + (n < sizeof f.name ? 0 : n - sizeof f.name + 1));
    mti_format(f.text, sizeof f.text, "%.17g", bytes);
    f.low = f.high = (uint64_t)llround(bytes);
    return mti_reading_add(w->out, w->path, &f);
}

/* Values by step: {"1": N, "5": N} or [[1, N], [5, N]]. */
static bool add_series(const walk *w, mti_reading_kind kind, const char *name, json_t *series)
{
    const char *key;
    json_t *value;
    size_t i;
    bool ok = true;
    json_t *values = json_object_get(series, "values");
    json_object_foreach(values ? values : series, key, value)
    {
        const int64_t step = (int64_t)mti_strtod(key, NULL);
        ok = ok && (!key[strspn(key, "0123456789")] ? add(w, kind, name, step, value) : true);
    }
    json_array_foreach(series, i, value) ok =
        ok &&
        add(w, kind, name, json_integer_value(json_array_get(value, 0)), json_array_get(value, 1));
    return ok;
}

/* Down to a depth that no such file has. */
static bool visit(const walk *w, const char *path, json_t *value, int depth)
{
    const char *key;
    json_t *inner;
    size_t i;
    bool ok = true;
    if (depth > 32) return true;
    json_object_foreach(value, key, inner)
    {
        char name[512];
        mti_reading_kind kind;
        snprintf(name, sizeof name, "%s%s%s", path, *path ? "." : "", key);
        if (!ok) break;
        if (!mti_reading_find(key, &kind))
            ok = visit(w, name, inner, depth + 1);
        else if (json_is_number(inner))
            ok = add(w, kind, name, -1, inner);
        else
            ok = add_series(w, kind, name, inner);
    }
    json_array_foreach(value, i, inner) ok = ok && visit(w, path, inner, depth + 1);
    return ok;
}

/* What is no JSON as a whole is read as lines. */
bool mti_readings_of_json(mti_readings *out, const char *path, const char *text, size_t n)
{
    json_error_t error;
    const walk w = {out, path};
    const uint64_t failures = mti_failures();
    json_t *root = mti_json_read(text, n, &error);
    if (!root && mti_failed_since(failures)) return false; /* no memory */
    bool ok = !root || visit(&w, "", root, 0);
    json_decref(root);
    return ok;
}
