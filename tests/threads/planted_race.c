/* Races that ThreadSanitizer must report, and code that it must not report: planted_race WHICH.
 *   plain   two host threads add to a number
 *   none    the same with a mutex */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long total;

static void *add_bare(void *argument)
{
    for (int i = 0; i < 1000; i++) total += *(int *)argument;
    return NULL;
}

static void *add_locked(void *argument)
{
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_lock(&lock);
        total += *(int *)argument;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static int by_two(void *(*add)(void *))
{
    pthread_t thread[2];
    int one = 1;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, add, &one)) return 1;
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    return 0;
}

int main(int argc, char **argv)
{
    const char *which = argc == 2 ? argv[1] : "";
    int failed = 0;
    if (!strcmp(which, "plain"))
        failed = by_two(add_bare);
    else if (!strcmp(which, "none"))
        failed = by_two(add_locked);
    else
        failed = 2;
    printf("%s: %ld\n", which, total);
    return failed;
}
