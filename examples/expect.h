/* expect.h: what the lessons' programs share: each figure is measured, and compared with the same
 * figure worked out by hand. One that is not equal fails the program, and so the tests. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>
#include <memtape/all.h>

static int n_wrong;

/* One line: what it is, the measured figure, and a complaint if it is not the expected one. */
static inline void expect(const char *what, int64_t measured, int64_t by_hand)
{
    printf("%-60s %12lld", what, (long long)measured);
    if (measured != by_hand) printf("   WRONG: by hand it is %lld", (long long)by_hand);
    printf("\n");
    n_wrong += measured != by_hand;
}

/* A tensor takes whole blocks of 512 bytes. */
static inline int64_t blocks(int64_t n_bytes) { return (n_bytes + 511) / 512 * 512; }

static inline int64_t allocated(const mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return (int64_t)stats.allocated.current;
}

static inline int64_t reserved(const mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return (int64_t)stats.reserved.current;
}

/* The exit status of main. */
static inline int finish(void)
{
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    printf("%s\n", n_wrong ? "NOT as worked out by hand" : "all as worked out by hand");
    return n_wrong == 0 && mt_last_status() == MT_OK ? 0 : 1;
}

#endif
