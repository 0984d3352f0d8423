"""snapshot.py: what PyTorch's allocator recorded (torch.cuda.memory._snapshot), as requests that another allocator
can be asked for, and PyTorch's own figures beside that allocator's. Needs no PyTorch: a pickle of plain objects."""

import pickle

FIGURES = ("requested", "allocated", "active", "reserved", "segments")
# torch.cuda.memory_stats's names of them; segments counts none of the expandable ones, and neither does memtape.
STATS = {"requested": "requested_bytes", "allocated": "allocated_bytes", "active": "active_bytes",
         "reserved": "reserved_bytes", "segments": "segment"}


def read(path):
    with open(path, "rb") as f:
        return pickle.load(f)


def events_of(snapshot):
    """Lines for `memtape_gpu replay`. ValueError where a replay would not be the same: events that are missing,
    or memory that went back to the device."""
    lines, ids = [], {}
    for event in snapshot["device_traces"][0]:
        action, at = event["action"], event["addr"]
        if action == "alloc":
            ids[at] = len(lines)
            lines.append(f"+ {len(lines)} {event['size']}")
        elif action == "free_completed":
            if at not in ids:
                raise ValueError(f"the block at {at:#x} was asked for before recording began")
            lines.append(f"- {ids.pop(at)}")
        elif action in ("segment_free", "segment_unmap"):
            raise ValueError("the allocator has given memory back to the device")
    return lines


def stats_of(memory_stats):
    """Of torch.cuda.memory_stats(): {"memory": FIGURES, "peak": FIGURES}"""
    return {when: [memory_stats[f"{STATS[figure]}.all.{key}"] for figure in FIGURES]
            for when, key in (("memory", "current"), ("peak", "peak"))}


def differences(theirs, mine):
    """What differs, each as text."""
    return [f"{'peak of ' * (when == 'peak')}{figure}: {b}, not PyTorch's {a}"
            for when in ("memory", "peak")
            for figure, a, b in zip(FIGURES, theirs[when], mine[when]) if a != b]
