/* planted.h: files with any header and data, right or wrong. */
#ifndef PLANTED_H
#define PLANTED_H

#include "mtt.h"

/* A path in the test's own folder, which is made on the first call. */
const char *planted_path(const char *name);
/* Removes the folder; fails if something is left in it that no test removed. */
int planted_end(void **state);

/* Writes an 8-byte length, the header, and n_data bytes counting up from 0. */
void planted_file(const char *path, uint64_t length, const char *header, size_t n_data);
void planted_bytes(const char *path, const void *bytes, size_t n_bytes);
/* The whole file; the caller frees it. */
unsigned char *planted_read(const char *path, size_t *n_bytes);

#endif
