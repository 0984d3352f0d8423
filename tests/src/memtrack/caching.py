"""A caching allocator by PyTorch's rules (c10/cuda/CUDACachingAllocator.cpp), which knows nothing of ours: each stream has a pool
of small and one of large blocks, in segments of their own sizes or expandable ones."""
from collections import Counter, defaultdict

MIB = 1 << 20
FIGURES = ["requested", "allocated", "active", "reserved"]


def is_small(pool):
    return pool[1] == "small"


class Block:
    def __init__(self, pool, place, size):
        self.pool, self.place, self.size = pool, place, size  # pool: (stream, "small"); place: (the segment's number, offset)
        self.left = self.right = None
        self.requested = None  # free


class Allocator:
    """cudaMalloc gives each segment an address above all others'."""

    def __init__(self, expandable):
        self.expandable, self.free, self.n_segments = expandable, defaultdict(set), 0
        self.reserved = Counter()  # by stream
        self.last = {}  # of expandable segments: the block at the end of what is mapped
        self.now = dict.fromkeys(FIGURES, 0)

    def join(self, left, right):
        left.size += right.size
        left.right = right.right
        if right.right:
            right.right.left = left
        if self.last.get(left.pool) is right:
            self.last[left.pool] = left
        return left

    def reserve(self, pool, n):
        self.now["reserved"] += n
        self.reserved[pool[0]] += n

    def new_segment(self, pool, size):
        n = 2 * MIB if is_small(pool) else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        self.reserve(pool, n)
        self.n_segments += 1
        return Block(pool, (self.n_segments, 0), n)

    def grow(self, pool, size):
        """An expandable segment has addresses without end; it maps whole granules behind what it has."""
        granule, end = (2 if is_small(pool) else 20) * MIB, self.last.get(pool)
        before = end.size if end and end.requested is None else 0
        n = -(-(size - before) // granule) * granule
        self.reserve(pool, n)
        at = end.place[1] + end.size if end else 0
        new = self.last[pool] = Block(pool, (pool, at), n)
        if end:
            end.right, new.left = new, end
        if before:
            self.free[pool].discard(end)
            new = self.join(end, new)
        return new

    def find(self, pool, size):
        fits = sorted((b for b in self.free[pool] if b.size >= size), key=lambda b: (b.size, b.place))
        if self.expandable and len(fits) > 1 and fits[0] is self.last.get(pool):
            return fits[1]  # the first could grow to more
        return fits[0] if fits else None

    def alloc(self, requested, stream):
        size = -(-requested // 512) * 512
        pool = stream, "small" if size <= MIB else "large"
        block = self.find(pool, size)
        if not block:
            block = (self.grow if self.expandable else self.new_segment)(pool, size)
        self.free[pool].discard(block)
        rest = block.size - size
        if rest >= 512 if is_small(pool) or self.expandable else rest > MIB:
            other = Block(pool, (block.place[0], block.place[1] + size), rest)
            other.left, other.right, block.right, block.size = block, block.right, other, size
            if other.right:
                other.right.left = other
            if self.last.get(pool) is block:
                self.last[pool] = other
            self.free[pool].add(other)
        block.requested = requested
        self.count(block, 1)
        return block

    def release(self, block):
        self.count(block, -1)
        block.requested = None
        for left, right in [(block, block.right), (block.left, block)]:
            if left and right and left.requested is None and right.requested is None:
                self.free[block.pool] -= {left, right}
                block = self.join(left, right)
        self.free[block.pool].add(block)

    def count(self, block, sign):
        self.now["requested"] += sign * block.requested
        self.now["allocated"] += sign * block.size
        self.now["active"] += sign * block.size
