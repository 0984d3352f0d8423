/* replay.c: PyTorch's requests for memory, asked of memtape's allocator.
 *
 * Standard input has PyTorch's recorded events (bench/gpu/torch_side.py, snapshot): "+ ID BYTES", a
 * block that was asked for, and "- ID", given back. Answers "memory REQUESTED ALLOCATED ACTIVE
 * RESERVED SEGMENTS", now, and "peak", the same. On meta no memory is needed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpu.h"

typedef struct blocks {
    mt_tensor **at; /* by ID; NULL: given back */
    size_t n;
} blocks;

static bool make_room(blocks *b, size_t id)
{
    if (id < b->n) return true;
    size_t n = 2 * id + 16;
    mt_tensor **at = realloc(b->at, n * sizeof(mt_tensor *));
    if (!at) return false;
    memset(at + b->n, 0, (n - b->n) * sizeof(mt_tensor *));
    b->at = at, b->n = n;
    return true;
}

static bool read_event(mt_device *device, blocks *b, const char *line)
{
    size_t id;
    int64_t n_bytes;
    if (sscanf(line, "+ %zu %" SCNd64, &id, &n_bytes) == 2 && make_room(b, id) && !b->at[id])
        return (b->at[id] = mt_empty(device, MT_U8, MT_SHAPE(n_bytes))) != NULL;
    if (sscanf(line, "- %zu", &id) != 1 || id >= b->n || !b->at[id]) return false;
    mt_set(&b->at[id], NULL);
    return true;
}

int gpu_replay(int argc, char **argv)
{
    char line[64];
    bool expands = argc == 2 && strcmp(argv[1], "expandable") == 0;
    if (argc != 1 + expands) return 2;
    mt_device *device = mt_device_open(argv[0]);
    blocks b = {0};
    bool ok = device && (!expands || mt_mem_set_expandable(device, &(mt_expandable){0}) == MT_OK);
    while (ok && fgets(line, sizeof line, stdin))
        if (!(ok = read_event(device, &b, line))) fprintf(stderr, "memtape_gpu: %s", line);
    if (ok) {
        mt_mem_stats s;
        mt_mem_get_stats(device, &s);
#define FIGURES(when)                                                                              \
    s.requested.when, s.allocated.when, s.active.when, s.reserved.when, s.segments.when
        printf("memory %zu %zu %zu %zu %zu\n", FIGURES(current));
        printf("peak %zu %zu %zu %zu %zu\n", FIGURES(peak));
#undef FIGURES
    } else
        bench_failed("replay");
    for (size_t i = 0; i < b.n; i++) mt_release(b.at[i]);
    free(b.at);
    mt_device_release(device);
    return ok ? 0 : 1;
}
