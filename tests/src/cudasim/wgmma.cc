/* wgmma.cc: products of a warpgroup and mbarriers, after the tables in the PTX manual.
 *
 * A product happens as late as it may: when its warp waits for its group. Until then its
 * accumulators hold NaN; who writes them, or the registers of A, meanwhile is told at the wait.
 * Each of the four warps computes its own 16 rows when it waits itself, so that a tile that one of
 * them still needs must not be overwritten. Copies that an mbarrier counts arrive when somebody
 * waits for it, and each 16 bytes remember when: a product may read them only after a later fence
 * of its threads. Tiles swizzled by 128 bytes, in dynamic shared memory, are all that is known
 * here. */
#include "cudasim/simulator.h"

namespace cudasim
{

static constexpr unsigned whole_warp = 0xffffffffu;
static constexpr uint32_t window = 0x480; /* the address of dynamic_shared(): a multiple of 128 */

/* ---- mbarriers ---- */

/* What the 8 bytes hold. */
struct mbarrier {
    uint16_t expected, pending;
    uint32_t phases; /* over so far */
};
static constexpr uint32_t never = 0xffffffffu; /* poison: not initialized */

static mbarrier *barrier_at(uint64_t *at, place here)
{
    mbarrier *b = mti_at<mbarrier>(at, here);
    if (b->phases == never) fault(here, "an mbarrier that was not initialized");
    return b;
}

static void wake(const void *barrier)
{
    for (unsigned i = 0; i < sim.n_threads; i++)
        if (sim.threads[i].at == state::waiting &&
            sim.threads[i].waits_for == collective::mbarrier && sim.threads[i].barrier == barrier)
            sim.threads[i].at = state::ready;
}

static void arrive(uint64_t *at, place here)
{
    mbarrier *b = barrier_at(at, here);
    if (--b->pending) return;
    b->pending = b->expected;
    b->phases++;
    wake(at);
}

/* The copies that arrivals at this barrier have waited for. */
static void deliver(uint64_t *at, place here)
{
    std::vector<arrival> due;
    for (size_t i = 0; i < sim.arrivals.size();)
        if (sim.arrivals[i].barrier == at) {
            due.push_back(std::move(sim.arrivals[i]));
            sim.arrivals.erase(sim.arrivals.begin() + (ptrdiff_t)i);
        } else
            i++;
    for (const arrival &a : due) {
        for (const async_copy &c : a.copies) finish_copy(c);
        arrive(at, here);
    }
}

} // namespace cudasim

using namespace cudasim;

void mti_mbarrier_init(uint64_t *at, int n_arrivals, place here)
{
    mbarrier *b = mti_at<mbarrier>(at, here);
    *b = {(uint16_t)n_arrivals, (uint16_t)n_arrivals, 0};
}

void mti_mbarrier_arrive(uint64_t *at, place here) { arrive(at, here); }

void mti_mbarrier_arrive_copied(uint64_t *at, place here)
{
    thread *t = &sim.threads[sim.current];
    barrier_at(at, here);
    sim.arrivals.push_back({at, std::move(t->copies)});
    t->copies.clear();
    wake(at);
}

void mti_mbarrier_wait(uint64_t *at, unsigned parity, place here)
{
    thread *t = &sim.threads[sim.current];
    if (skips(here)) return;
    for (;;) {
        deliver(at, here);
        if ((barrier_at(at, here)->phases & 1) != parity) return;
        t->barrier = at;
        wait_here(collective::mbarrier, here);
    }
}

/* ---- operands in shared memory ---- */

uint32_t mti_shared_address(const void *p, place here)
{
    size_t offset = (size_t)((const unsigned char *)p - sim.dynamic);
    if (offset > sim.n_dynamic) fault(here, "the address is not in dynamic shared memory");
    return window + (uint32_t)offset;
}

namespace cudasim
{

struct operand {
    uint32_t address, first, second; /* the two distances */
    bool transposed;                 /* k along the columns */
};

static operand read_descriptor(uint64_t d, bool transposed, place here)
{
    if (d >> 62 != 1) fault(here, "a tile that is not swizzled by 128 bytes");
    if (d >> 49 & 7) fault(here, "a tile that does not begin at a multiple of 1,024 bytes");
    return {(uint32_t)(d & 0x3fff) << 4, (uint32_t)(d >> 16 & 0x3fff) << 4,
            (uint32_t)(d >> 32 & 0x3fff) << 4, transposed};
}

/* Number k < 16 of row (A) or column (B) `at`. */
static float element(const operand &o, uint32_t at, uint32_t k, uint64_t fenced, place here)
{
    uint32_t address =
        o.address + (o.transposed ? at / 64 * o.first + at % 64 * 2 + k / 8 * o.second + k % 8 * 128
                                  : at / 8 * o.second + at % 8 * 128 + k * 2);
    address ^= (address >> 7 & 7) << 4;
    uint32_t offset = address - window;
    if (address < window || offset + 2 > sim.n_dynamic)
        fault(here, "a product reads beyond dynamic shared memory");
    if (sim.copied[offset / 16] > fenced)
        fault(here, "a product reads what was copied without a fence of its threads since");
    uint16_t bits;
    memcpy(&bits, sim.dynamic + offset, sizeof bits);
    return cudasim_bf16_value(bits);
}

/* ---- starting a product ---- */

static accumulators *accumulators_at(thread *t, float *d, int n)
{
    for (accumulators &a : t->accumulators)
        if (a.d == d) return &a;
    t->accumulators.push_back({d, std::vector<float>(d, d + n), 0});
    memset(d, poison, (size_t)n * sizeof *d);
    return &t->accumulators.back();
}

void start_product(float *d, int columns, const uint32_t *a, uint64_t a_tile, uint64_t b, bool add,
                   place here)
{
    thread *t = &sim.threads[sim.current];
    if (!t->registers_fenced)
        fault(here, "a product after a wait, or the first one, without mti_wgmma_fence");
    accumulators *into = accumulators_at(t, d, columns / 2);
    into->products++;
    product p = {d, columns, a, {0, 0, 0, 0}, a_tile, b, add, t->n_product_groups, t->fenced, here};
    if (a) memcpy(p.was, a, sizeof p.was);
    t->products.push_back(p);
    /* all warps of a group start the same ones */
    uint64_t told[] = {(uint64_t)columns, a ? 0 : a_tile, b, (uint64_t)add};
    for (uint64_t x : told) t->started = (t->started ^ x) * 0x100000001b3u;
}

/* ---- finishing products ---- */

struct wait_slot {
    int n_left;
    place here;
};

/* The warp's 16 rows of A, from its registers or its rows of a tile of 64. */
static void gather(const product *of_lane[32], unsigned warp, float (&a)[16][16])
{
    const product *first = of_lane[0];
    if (!first->a) {
        operand rows = read_descriptor(first->a_tile, false, first->here);
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t k = 0; k < 16; k++)
                a[r][k] = element(rows, warp % 4 * 16 + r, k, first->fenced, first->here);
        return;
    }
    for (int lane = 0; lane < 32; lane++) {
        const product *p = of_lane[lane];
        if (memcmp(p->a, p->was, sizeof p->was))
            fault(p->here, "A's registers changed before the product was over");
        for (int i = 0; i < 4; i++)
            for (int h = 0; h < 2; h++)
                a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + h] =
                    cudasim_bf16_value((uint16_t)(p->was[i] >> (16 * h)));
    }
}

static void multiply(const product *of_lane[32], unsigned warp)
{
    const product *first = of_lane[0];
    float a[16][16], b[16][256];
    gather(of_lane, warp, a);
    operand columns = read_descriptor(first->b, first->a != nullptr, first->here);
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t n = 0; n < (uint32_t)first->columns; n++)
            b[k][n] = element(columns, n, k, first->fenced, first->here);
    for (unsigned lane = 0; lane < 32; lane++) {
        thread *t = &sim.threads[warp * 32 + lane];
        accumulators *into = accumulators_at(t, of_lane[lane]->d, first->columns / 2);
        for (int i = 0; i < first->columns / 2; i++) {
            unsigned row = lane / 4 + (unsigned)i % 4 / 2 * 8;
            unsigned column = (unsigned)i / 4 * 8 + lane % 4 * 2 + (unsigned)i % 2;
            float sum = first->add ? into->value[(size_t)i] : 0;
            for (unsigned k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            into->value[(size_t)i] = sum;
        }
        into->products--;
    }
}

/* Puts back the accumulators whose products are all done. */
static void put_back(thread *t, place here)
{
    for (size_t i = 0; i < t->accumulators.size();) {
        accumulators &a = t->accumulators[i];
        if (a.products) {
            i++;
            continue;
        }
        const unsigned char *bytes = (const unsigned char *)a.d;
        for (size_t j = 0; j < a.value.size() * sizeof(float); j++)
            if (bytes[j] != poison) fault(here, "accumulators were written during a product");
        memcpy(a.d, a.value.data(), a.value.size() * sizeof(float));
        t->accumulators.erase(t->accumulators.begin() + (ptrdiff_t)i);
    }
}

/* Runs when all lanes of a warp have come to a wait. */
static void finish_products(slot *slots, unsigned)
{
    wait_slot wait = unpack<wait_slot>(slots[0]);
    unsigned warp = sim.current / 32;
    thread *lanes = &sim.threads[warp * 32];
    size_t n = 0;
    while (n < lanes->products.size() &&
           lanes->products[n].group < lanes->n_product_groups - wait.n_left) {
        const product *of_lane[32];
        for (int lane = 0; lane < 32; lane++) {
            if (lanes[lane].products.size() != lanes->products.size() ||
                lanes[lane].started != lanes->started)
                fault(wait.here, "lanes of a warp started different products");
            of_lane[lane] = &lanes[lane].products[n];
        }
        multiply(of_lane, warp);
        n++;
    }
    for (int lane = 0; lane < 32; lane++) {
        std::vector<product> &p = lanes[lane].products;
        p.erase(p.begin(), p.begin() + (ptrdiff_t)n);
        put_back(&lanes[lane], wait.here);
    }
}

bool products_agree()
{
    for (unsigned i = 0; i < sim.n_threads; i++) {
        const thread *t = &sim.threads[i], *first = &sim.threads[i / 128 * 128];
        if (t->products.empty() && t->started == first->started) continue;
        snprintf(sim.text, sizeof sim.text, "kernel %s, block (%u,%u,%u), thread %u: %s", sim.name,
                 blockIdx.x, blockIdx.y, blockIdx.z, i,
                 t->products.empty() ? "its warpgroup started other products"
                                     : "ended before its products were waited for");
        return false;
    }
    return true;
}

} // namespace cudasim

void mti_fence_async(place here)
{
    if (!skips(here)) sim.threads[sim.current].fenced = ++sim.clock;
}

void mti_wgmma_fence(place here)
{
    if (!skips(here)) sim.threads[sim.current].registers_fenced = true;
}

void mti_wgmma_commit() { sim.threads[sim.current].n_product_groups++; }

void cudasim::wait_for_products(int n_left, place here)
{
    if (skips(here)) return;
    slot s = pack(wait_slot{n_left, here});
    meet(collective::wgmma, whole_warp, here, &s, finish_products);
    sim.threads[sim.current].registers_fenced = false;
}
