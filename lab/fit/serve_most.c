/* serve_most.c: how many sequences fit.
 *
 * What fits is not monotonic: more sequences read fewer positions at once, and the allocator's
 * segments round. Two things are used to find the most by few whole runs:
 *
 *   the ceiling  what tensors have at once, in the last forwards alone, is no more than a whole run
 *                reserves. It grows with the sequences, as long as each forward reads as many
 *                positions of each: within a range of numbers. So the most whose tensors fit are
 *                found by halving ranges, and no number above fits.
 *   the guess    the same forwards within the capacity, from the ceiling down. It is where whole
 *                runs begin; they alone decide. */
#include "fit/at_once.h"
#include "fit/serve.h"

#define FORWARDS 600 /* all numbers up to the ceiling are tried if that takes no more of them */

/* What is known: `fits` do, `refused` do not, nor does anything above `ceiling`. */
typedef struct bracket {
    const mt_serve_options *options;
    size_t capacity;
    int64_t fits, refused, ceiling;
    mt_serve_need need; /* of `fits` */
} bracket;

/* Whether n pass: false for a failure. */
typedef bool test_fn(bracket *b, int64_t n, bool *pass);

static bool attempt(bracket *b, int64_t n, bool *fits)
{
    mt_serve_need need;
    if (!mti_serve_try(b->options, MTI_SERVE_ALL, n, b->capacity, fits, NULL, &need)) return false;
    if (*fits)
        b->fits = n, b->need = need;
    else
        b->refused = n, mt_clear_error();
    return true;
}

/* *room: what is left beside the most that tensors have at once; negative if they do not fit. */
static bool find_room(bracket *b, int64_t n, mti_serve_part part, double *room)
{
    mt_serve_need need;
    size_t requested;
    bool fits;
    if (!mti_serve_try(b->options, part, n, 0, &fits, &requested, &need) || !fits) return false;
    *room = (double)b->capacity - (double)requested;
    return true;
}

static bool last_fits(bracket *b, int64_t n, bool *pass)
{
    double room;
    if (!find_room(b, n, MTI_SERVE_LAST, &room)) return false;
    *pass = room >= 0;
    return true;
}

static bool is_likely(bracket *b, int64_t n, bool *pass)
{
    mt_serve_need need;
    if (!mti_serve_try(b->options, MTI_SERVE_LAST, n, b->capacity, pass, NULL, &need)) return false;
    if (!*pass) mt_clear_error();
    return true;
}

/* *low passes, high does not: halves what is between. */
static bool halve(bracket *b, test_fn *test, int64_t *low, int64_t high)
{
    while (high - *low > 1) {
        int64_t n = *low + (high - *low) / 2;
        bool pass;
        if (!test(b, n, &pass)) return false;
        *(pass ? low : &high) = n;
    }
    return true;
}

/* The fewest sequences of which a forward reads as many positions as of n. */
static int64_t range_of(const bracket *b, int64_t n)
{
    return b->options->at_once / (mti_serve_share(b->options, n) + 1) + 1;
}

/* *n: the most that pass, at most *n, if in each range fewer pass where more do; at least `fits`.
 */
static bool descend(bracket *b, test_fn *test, int64_t *n)
{
    bool pass;
    for (int64_t low; *n > b->fits; *n = low - 1) {
        if (!test(b, *n, &pass)) return false;
        if (pass) return true;
        low = range_of(b, *n);
        if (low <= b->fits)
            low = b->fits, pass = true;
        else if (low < *n && !test(b, low, &pass))
            return false;
        if (pass) {
            int64_t high = *n;
            *n = low;
            return halve(b, test, n, high);
        }
    }
    *n = b->fits;
    return true;
}

/* The token alone grows with the sequences whatever a forward reads, almost along a line. */
static bool find_ceiling(bracket *b)
{
    int64_t low = 1, high = MTI_SERVE_MOST + 1, n[2] = {1, 2};
    double room[2];
    for (int i = 0; i < 2; i++)
        if (!find_room(b, n[i], MTI_SERVE_TOKEN, &room[i])) return false;
    for (int i = 1; high - low > 1; i++) {
        double each = (room[0] - room[1]) / (double)(n[1] - n[0]);
        double next = each > 0 ? (double)n[1] + room[1] / each : (double)high;
        if (i % 4 == 0) next = (double)(low + (high - low) / 2);
        n[0] = n[1], room[0] = room[1];
        n[1] = next < (double)high ? (int64_t)next : high - 1;
        if (n[1] <= low) n[1] = low + 1;
        if (!find_room(b, n[1], MTI_SERVE_TOKEN, &room[1])) return false;
        *(room[1] >= 0 ? &low : &high) = n[1];
    }
    b->ceiling = low;
    return descend(b, last_fits, &b->ceiling);
}

/* From n in longer and longer steps until one number fits and a larger one does not; then halves.
 */
static bool close_in(bracket *b, int64_t n)
{
    bool fits;
    for (int64_t up = 1, down = 1; b->refused - b->fits > 1; up *= 2, down *= 2) {
        if (n <= b->fits) n = b->fits + 1;
        if (n >= b->refused) n = b->refused - 1;
        const bool first = b->fits == 1 || b->refused > b->ceiling;
        if (!attempt(b, n, &fits)) return false;
        n = !first ? b->fits + (b->refused - b->fits) / 2 : fits ? n + up : n - down;
    }
    return true;
}

/* The numbers between the one that was refused and the ceiling, from there down. */
static bool try_the_rest(bracket *b)
{
    bool fits = false;
    const int64_t refused = b->refused, left = b->ceiling - refused;
    if (!b->options->exact && left * (b->need.forwards + 1) > FORWARDS) return true;
    while (!fits && b->ceiling > refused)
        if (!attempt(b, b->ceiling, &fits))
            return false;
        else if (!fits)
            b->ceiling--;
    if (!fits) b->ceiling = b->fits;
    return true;
}

mt_status mt_serve_most(const mt_serve_options *options, size_t capacity, mt_serve_need *out)
{
    mt_model_config config;
    mt_serve_options o;
    if (!mti_serve_complete("serve_most", options, out, &config, &o)) return mt_last_status();
    if (!capacity) return mti_fail(MT_ERR_ARGUMENT, "serve_most: the capacity is 0");
    if (!mti_serve_few_blocks(&o, MTI_SERVE_MOST, capacity)) return mt_last_status();
    bracket b = {.options = &o, .capacity = capacity};
    bool fits;
    if (!attempt(&b, 1, &fits)) return mt_last_status();
    if (!fits) { /* what one needs */
        bool ok = mti_serve_try(&o, MTI_SERVE_ALL, 1, 0, &fits, NULL, out) && fits;
        out->sequences = 0;
        return ok ? MT_OK : mt_last_status();
    }
    if (!find_ceiling(&b)) return mt_last_status();
    int64_t guess = b.ceiling;
    b.refused = b.ceiling + 1;
    if (!descend(&b, is_likely, &guess) || !close_in(&b, guess) || !try_the_rest(&b))
        return mt_last_status();
    *out = b.need;
    out->none_above = b.ceiling;
    return MT_OK;
}

/* ---- for several lengths and forms ---- */

typedef struct many {
    const mt_serve_options *options;
    size_t capacity;
    mt_serve_need *most;
    void (*done)(void *user, size_t n_done, size_t i);
    void *user;
} many;

static bool find_one(void *user, size_t i)
{
    const many *m = user;
    return mt_serve_most(&m->options[i], m->capacity, &m->most[i]) == MT_OK;
}

static bool tell(void *user, size_t n_done, size_t i)
{
    const many *m = user;
    if (m->done) m->done(m->user, n_done, i);
    return true;
}

/* Each of them may take gigabytes of host memory for the blocks of a paged cache. */
static int64_t most_threads(const mt_serve_options *options, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (options[i].cache == MT_KV_PAGED) return 1;
    return 0;
}

bool mti_serve_most_of_many(const mt_serve_options *options, size_t n, size_t capacity,
                            mt_serve_need *most, void (*done)(void *user, size_t n_done, size_t i),
                            void *user)
{
    many m = {.options = options, .capacity = capacity, .most = most, .done = done, .user = user};
    return mti_work_at_once(&(mti_tasks){
        .n = n, .most = most_threads(options, n), .work = find_one, .done = tell, .user = &m});
}
