/* Ranks of one machine share its memory: threads of the test stand for them, and nothing is
 * allocated. */
#include "../../models/parallel/as_ranks.h"
#include "base/base.h"
#include "measure/headroom.h"

enum { RANKS = 4 };

/* What each rank needs, in hundredths of the room; whether it is there for all. */
typedef struct need {
    const char *kind;
    int hundredths[RANKS];
    bool fits[RANKS];
} need;

static void ask(mt_comm *world, void *user)
{
    const need *n = user;
    uint64_t machine;
    int64_t rank = mt_comm_group(world).rank;
    size_t needed = mti_shared_room(&machine) / 100 * (size_t)n->hundredths[rank];
    bool fits = mti_check_room_together(world, n->kind, "it", needed, "need less");
    MTT_NEED(fits == n->fits[rank]);
    if (!fits) mtt_failed(MT_ERR_MEMORY, "it, by ", "ranks of one machine, takes", "need less");
}

static void ranks_of_a_machine_share_its_room(void **state)
{
    (void)state;
    static const need needs[] = {
        {"cpu", {20, 20, 20, 20}, {true, true, true, true}},
        {"cpu", {30, 30, 30, 30}, {false, false, false, false}},
        {"cpu", {90, 1, 1, 20}, {false, false, false, false}},
        {"cpu", {0, 40, 0, 40}, {true, true, true, true}},   /* 0: has failed */
        {"cpu", {0, 60, 0, 60}, {true, false, true, false}}, /* ... and it keeps its own error */
        {"meta", {90, 90, 90, 90}, {true, true, true, true}},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        mtt_as_ranks(RANKS, ask, (void *)&needs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_of_a_machine_share_its_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
