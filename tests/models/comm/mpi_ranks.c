/* Collectives among processes: mpirun -n 4 mpi_ranks. */
#include <stdio.h>
#include <string.h>
#include "ranks.h"

int main(void)
{
    mt_comm *world = mt_comm_open("mpi");
    MTT_NEED(world);
    mt_group group = mt_comm_group(world);
    mtt_check_collectives(world);
    mtt_check_stages(world);
    mt_comm *same = mt_comm_split(world, 0, group.rank);
    MTT_NEED(same);
    mtt_check_behind(same);
    mt_comm_free(same);
    if (group.ranks > 2) mtt_check_split(world);
    MTT_NEED(!mt_comm_open("mpi") && strstr(mt_last_error(), "before"));
    if (group.rank == 0) printf("%lld ranks\n", (long long)group.ranks);
    mt_comm_free(world);
    return 0;
}
