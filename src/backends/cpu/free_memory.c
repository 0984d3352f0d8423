/* free_memory.c: how much memory this process can still get, according to Linux. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "backends/cpu/cpu.h"

#define CGROUPS "/sys/fs/cgroup"

/* At most size - 1 characters of the file; "" if it does not exist. */
static const char *read_text(const char *path, char *buf, size_t size)
{
    ssize_t n = 0, got = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && (size_t)n < size - 1 &&
           (got = read(file, buf + n, size - 1 - (size_t)n)) > 0)
        n += got;
    if (file >= 0) close(file);
    buf[n] = 0;
    return buf;
}

/* "MemAvailable:   16384 kB" in bytes; `missing` if there is no such line. */
static size_t kilobytes(const char *text, const char *name, size_t missing)
{
    const char *at = strstr(text, name);
    return at ? (size_t)strtoull(at + strlen(name), NULL, 10) * 1024 : missing;
}

static void lower(size_t *room, size_t to)
{
    if (to < *room) *room = to;
}

/* Applies the limit in `file` of the group at `path` and of its parents. "max" and missing files
 * are no limit. */
static void lower_to_group(size_t *room, size_t swap, const char *root, const char *path,
                           const char *file)
{
    char name[4096], text[64], *end;
    int length = snprintf(name, sizeof name, "%s%s", root, path);
    if (length < 0 || (size_t)length + strlen(file) + 2 > sizeof name) return;
    for (;;) {
        size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, "/%s", file);
        unsigned long long limit = strtoull(read_text(name, text, sizeof text), &end, 10);
        if (end != text && limit < SIZE_MAX - swap) lower(room, (size_t)limit + swap);
        name[n] = 0;
        if (n <= strlen(root)) return;
        *strrchr(name, '/') = 0;
    }
}

/* Applies the limits of control groups, version 2 ("0::/a/b") and 1 ("5:memory:/a/b"). */
static void lower_to_groups(size_t *room, size_t swap)
{
    char text[4096], *rest = text, *line;
    read_text("/proc/self/cgroup", text, sizeof text);
    while ((line = strtok_r(rest, "\n", &rest))) {
        char *kind = strchr(line, ':'), *path = kind ? strchr(++kind, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        if (!*kind)
            lower_to_group(room, swap, CGROUPS, path, "memory.max");
        else if (!strcmp(kind, "memory"))
            lower_to_group(room, swap, CGROUPS "/memory", path, "memory.limit_in_bytes");
    }
}

/* Applies the limit of the address space (ulimit -v). */
static void lower_to_addresses(size_t *room)
{
    char text[128];
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
    size_t used = (size_t)strtoull(read_text("/proc/self/statm", text, sizeof text), NULL, 10) *
                  (size_t)sysconf(_SC_PAGESIZE);
    lower(room, limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0);
}

size_t mti_shared_room(uint64_t *machine)
{
    char text[4096], host[256] = "";
    gethostname(host, sizeof host - 1);
    read_text("/proc/self/cgroup", text, sizeof text);
    *machine =
        mti_hash_bytes(mti_hash_bytes(MTI_HASH_BEGIN, host, strlen(host)), text, strlen(text));
    read_text("/proc/meminfo", text, sizeof text);
    size_t swap = kilobytes(text, "\nSwapFree:", 0);
    size_t room = kilobytes(text, "\nMemAvailable:", SIZE_MAX - swap) + swap;
    lower_to_groups(&room, swap);
    return room;
}

size_t mti_host_room(void)
{
    uint64_t machine;
    size_t room = mti_shared_room(&machine);
    lower_to_addresses(&room);
    return room;
}
