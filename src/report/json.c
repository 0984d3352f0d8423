/* json.c: building and writing JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "files/files.h"
#include "report/json.h"

static _Thread_local bool incomplete; /* memory ran out since the last mti_json_complete */

char *mti_json_complete(const json_t *root, size_t flags)
{
    bool lost = incomplete;
    incomplete = false;
    return lost ? mti_fail_null(MT_ERR_MEMORY, "json: no memory for the report")
                : mti_json_text(root, flags);
}

void mti_json_put(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) incomplete = true;
}

void mti_json_put_int(json_t *object, const char *key, uint64_t value)
{
    mti_json_put(object, key, json_integer((json_int_t)value));
}

void mti_json_put_real(json_t *object, const char *key, double value)
{
    mti_json_put(object, key, isfinite(value) ? json_real(value) : json_null());
}

void mti_json_put_text(json_t *object, const char *key, const char *value)
{
    mti_json_put(object, key, value ? mti_json_string(value) : json_null());
}

json_t *mti_json_string(const char *text)
{
    if (mti_is_utf8(text)) return json_string(text);
    char *copy = mti_strdup(text);
    if (copy) mti_make_printable(copy);
    json_t *string = json_string(copy);
    mti_free(copy);
    return string;
}

void mti_json_push(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) incomplete = true;
}

void mti_json_print(FILE *out, const char *text, const char *escaped)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + strlen(text), *from = s;
    size_t length;
    for (; s < end; s += length) {
        uint32_t c = mti_next_char(s, end, &length);
        if (!mti_is_control(c) && (c >= 0x80 || !strchr(escaped, (int)c))) continue;
        fwrite(from, 1, (size_t)(s - from), out);
        fprintf(out, "\\u%04x", c <= UINT16_MAX ? c : '?');
        from = s + length;
    }
    fwrite(from, 1, (size_t)(s - from), out);
}

static bool write_file(const char *path, const char *text)
{
    mti_file *f = mti_file_create(path);
    FILE *out = f ? mti_file_stream(f) : NULL;
    if (out) {
        mti_json_print(out, text, "");
        fputc('\n', out);
        bool ok = !ferror(out);
        if (fclose(out) == 0 && ok) return mti_file_commit(f);
    }
    mti_file_abandon(f);
    return false;
}

mt_status mti_json_write(json_t *root, const char *path)
{
    char *text = mti_json_complete(root, JSON_INDENT(2));
    json_decref(root);
    bool ok = text != NULL;
    if (ok && strcmp(path, "-"))
        ok = write_file(path, text);
    else if (ok)
        mti_json_print(stdout, text, ""), fputc('\n', stdout);
    mti_free(text);
    return ok ? MT_OK : mt_last_status();
}
