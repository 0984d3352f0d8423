#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "planted.h"

static char folder[256];

const char *planted_path(const char *name)
{
    static char path[512];
    if (!folder[0]) {
        const char *parent = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/memtape-io-XXXXXX", parent ? parent : "/tmp");
        assert_non_null(mkdtemp(folder));
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

int planted_end(void **state)
{
    (void)state;
    return folder[0] && rmdir(folder) != 0;
}

void planted_bytes(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
}

void planted_file(const char *path, uint64_t length, const char *header, size_t n_data)
{
    size_t n_header = strlen(header), n = 8 + n_header + n_data;
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(bytes + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++) bytes[8 + n_header + i] = (unsigned char)i;
    planted_bytes(path, bytes, n);
    free(bytes);
}

unsigned char *planted_read(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n_bytes = (size_t)ftell(f);
    rewind(f);
    unsigned char *bytes = malloc(*n_bytes + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, f), *n_bytes);
    bytes[*n_bytes] = 0;
    fclose(f);
    return bytes;
}
