/* hf_config.c: reading any text as a config.json gives a valid configuration, or an error with a
 * message. */
#include <stdlib.h>
#include <string.h>
#include "memtape/models/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char *text = malloc(n_bytes + 1), notes[64];
    if (!text) return 0;
    memcpy(text, data, n_bytes);
    text[n_bytes] = 0;
    mt_model_config c;
    uint64_t n;
    mt_clear_error();
    if (mt_model_config_from_hf(text, &c, notes, sizeof notes) == MT_OK) {
        if (mt_model_config_check(&c) != MT_OK || mt_model_config_params(&c, &n) != MT_OK) abort();
        if (strlen(notes) >= sizeof notes) abort();
    } else if (mt_last_status() == MT_OK || !*mt_last_error()) {
        abort();
    }
    free(text);
    return 0;
}
