/* safetensors.c: parsing any bytes as a header gives a file whose entries lie within the data and
 * cover it, or an error with a message. */
#include <stdlib.h>
#include <string.h>
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_entries(const mt_safetensors *f, uint64_t file_bytes)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < mt_safetensors_count(f); i++) {
        mt_safetensors_entry e;
        if (mt_safetensors_get(f, i, &e) != MT_OK || e.rank < 0 || e.rank > MT_MAX_RANK) abort();
        size_t n = mt_dtype_size(e.dtype);
        for (int d = 0; d < e.rank; d++) n *= (size_t)e.shape[d];
        if (n != e.bytes || f->entries.at[i].begin != covered) abort();
        covered += e.bytes;
    }
    if (f->data_at + covered != file_bytes) abort();
}

static void check(const uint8_t *head, size_t n_head, uint64_t file_bytes)
{
    mt_clear_error();
    mt_safetensors *f = mti_safetensors_parse("input", head, n_head, file_bytes);
    if (f) {
        check_entries(f, file_bytes);
        const char *value = mt_safetensors_metadata(f, "memtape.step");
        if (value && strlen(value) > n_head) abort();
    } else if (mt_last_status() != MT_ERR_FORMAT || !*mt_last_error()) {
        abort();
    }
    mt_safetensors_free(f);
}

/* Reads the input as a whole file; and, so that the length is right, as two bytes with the size of
 * the data followed by a header. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    check(data, n_bytes, n_bytes);
    if (n_bytes < 2) return 0;
    size_t n_text = n_bytes - 2, n_data = data[0] | (size_t)data[1] << 8;
    uint8_t *head = malloc(8 + n_text);
    if (!head) return 0;
    for (int i = 0; i < 8; i++) head[i] = (uint8_t)((uint64_t)n_text >> (8 * i));
    memcpy(head + 8, data + 2, n_text);
    check(head, 8 + n_text, 8 + n_text + n_data);
    free(head);
    return 0;
}
