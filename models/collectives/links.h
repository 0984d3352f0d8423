/* links.h: what the ranks of a collective send each other from device memory that the host cannot
 * read: the functions of exchange_host.c's, as links have them (backends/link.h). */
#ifndef MTI_LINKS_H
#define MTI_LINKS_H

#include "collectives/collectives.h"

/* Elements of v that lie side by side for one index of the dimensions before `dim`. */
int64_t mti_inner_count(const mti_view *v, int dim);

mti_moving mti_moving_of(const mti_call *c);
/* Gives the comm the call's device, if it has links; before a message to a neighbour. */
bool mti_prepare_links(const mti_call *c, mt_comm *comm);
/* x and y contiguous, and in y's dtype */
bool mti_gather_links(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                      const mti_view *y);
bool mti_scatter_sum_links(mti_call *c, const mt_group *group, int dim, const mti_view *x,
                           const mti_view *y);
bool mti_sum_links(mti_call *c, const mt_group *group, const mti_view *y);
bool mti_scatter_inside_links(mti_call *c, const mt_group *group, const mti_view *y);
bool mti_gather_inside_links(mti_call *c, const mt_group *group, const mti_view *y);
/* Sends the comm's out[r] to each rank r, and receives in[r] from it; after mti_join_links, which
 * uses these. */
bool mti_join_links(mti_call *c, const mt_group *group);
bool mti_exchange_links(mti_call *c, const mt_group *group);

#endif
