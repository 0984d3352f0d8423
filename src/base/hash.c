/* hash.c: a hash of bytes; a separate file because backend modules are linked with it. */
#include "base/base.h"

uint64_t mti_hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}
