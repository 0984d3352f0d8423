/* json.c: building and writing JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "report/json.h"
#include "report/text.h"

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

mt_status mti_json_write(json_t *root, const char *path)
{
    char *text = mti_json_complete(root, JSON_INDENT(2));
    json_decref(root);
    if (!text) return mt_last_status();
    bool to_file = strcmp(path, "-") != 0;
    mti_file *file = to_file ? mti_file_create(path) : NULL;
    FILE *out = file ? mti_file_stream(file) : to_file ? NULL : stdout;
    if (out) mti_json_print(out, text, ""), fputc('\n', out);
    mti_free(text);
    return to_file ? mti_finish_file(file, out) : MT_OK;
}
