/* watch.c: what a run on the meta device allocates, layer by layer.
 *
 * Each event names its module. Forward goes up through the layers to the head, backward goes down
 * again. A checkpoint recomputes its layers in backward; that counts for the lowest of them. */
#include <stdlib.h>
#include <string.h>
#include "memtrack/memtrack.h"
#include "memory/budget.h"

int64_t mti_budget_layer(const char *module, const char **within)
{
    for (const char *at = module; (at = strstr(at, ".h.")); at++) {
        char *end;
        if (at[3] < '0' || at[3] > '9') continue;
        long long layer = strtoll(at + 3, &end, 10);
        if (*end && *end != '.') continue;
        if (within) *within = *end ? end + 1 : end;
        return layer;
    }
    return -1;
}

static void raise(int64_t *most, int64_t value)
{
    if (value > *most) *most = value;
}

/* The model's own scope, between two of its children. */
static bool is_whole_model(const char *module) { return *module && !strchr(module, '.'); }

/* Forward goes on to `place`; what is allocated now was kept by the layers before it. */
static void climb(mti_budget_watch *w, int64_t place)
{
    if (w->place < 0) w->base = w->current;
    while (w->place < place) w->at[++w->place].before = w->current - w->base;
}

static void come_down(mti_budget_watch *w, int64_t place)
{
    while (w->place > place)
        if (--w->place >= 0) raise(&w->at[w->place].at_backward, w->current);
}

/* Equal names of modules are one string, and of several events in a row. */
static void note_module(mti_budget_watch *w, const char *module)
{
    if (module == w->module) return;
    w->module = module;
    w->layer = mti_budget_layer(module, NULL);
    w->outside = w->layer < 0 && !is_whole_model(module);
}

static void find_place(mti_budget_watch *w, const mt_mem_event *e)
{
    note_module(w, e->module);
    const int64_t layer = w->layer;
    const bool back = !strcmp(e->phase, "backward"), outside = w->outside;
    if (w->back && !back) w->place = -1; /* the next step, or an optimizer's part */
    w->back = back;
    if (layer >= w->layers) return;
    if (layer >= 0 && !back && layer > w->place)
        climb(w, layer);
    else if (layer >= 0 && back && layer < w->place)
        come_down(w, layer);
    else if (outside && !back && w->place == w->layers - 1)
        climb(w, w->layers);
    else if (outside && back && w->place == 0)
        come_down(w, -1);
}

void mti_budget_watch_event(void *user, const mt_mem_event *event)
{
    mti_budget_watch *w = user;
    if (event->kind >= MT_MEM_OOM) return; /* nothing is allocated or freed */
    if (w->at) find_place(w, event);
    int64_t size = (int64_t)mti_rounded(event->requested);
    w->current += event->kind == MT_MEM_ALLOC ? size : event->kind == MT_MEM_FREE ? -size : 0;
    if (event->current > w->peak) w->peak = event->current;
    raise(&w->highest, w->current);
    if (!w->at) return;
    if (w->place < 0)
        raise(&w->rest, w->current);
    else
        raise(w->back ? &w->at[w->place].backward : &w->at[w->place].forward, w->current);
}
