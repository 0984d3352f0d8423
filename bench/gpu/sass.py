"""sass.py FOLDER...: checks the machine code of the CUDA kernels. Reads the code for sm_90 that nvcc left in
these folders (*.sm_90.cubin), prints a table of the kernels whose inner loop decides their speed, and fails if
one of them spills, stores in pieces, no longer uses tensor cores, or has grown.

An issue slot is one instruction of a warp. `slots` counts those of the inner loop per stored element, without
inner loops for odd layouts; (for a kernel that only reads: per loaded element); it is an upper bound, because branches may skip some. With the bytes per element it
gives a prediction for an H200: the share of the bandwidth that the kernel reaches at least, if only issuing
instructions limits it. For a kernel on tensor cores `products` is the share of 790 TFLOP/s (what cuBLASLt reaches
in bf16) that its loop allows: it is limited by issuing, by shared memory (ldmatrix), by exponentials or by
mma.sync, whichever takes longest. Its loop counts as if all branches were taken."""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys

from sass_kernels import KERNELS

GPU = "H200"
BANDWIDTH = 4.3e12  # bytes per second that copies reach
PRODUCTS = 790e12  # FLOP per second, bf16, of large products
MMA_SYNC = 660e12  # the same, what mma.sync can reach at most
CYCLES = 132 * 1.755e9  # multiprocessors, clock
LANE_SLOTS = 132 * 4 * 32 * 1.755e9  # multiprocessors, schedulers, lanes, clock


# ---- code --------------------------------------------------------------------------------------


class Code:
    """The instructions of one kernel: (name of the operation, its whole text)."""

    def __init__(self, name):
        self.name, self.lines, self.labels = name, [], {}

    def loops(self):
        """(first, last + 1) of each backward branch."""
        for i, (_, text) in enumerate(self.lines):
            target = re.search(r"BRA.*`\((\.L_\w+)\)", text)
            if target and self.labels.get(target[1], i + 1) < i:
                yield self.labels[target[1]], i + 1

    def inner(self, wanted=r".*\.128"):
        """The loop with the most vector accesses (or others), without the loops inside it."""
        loops = list(self.loops())
        if not loops:
            return self.lines
        first, last = max(loops, key=lambda loop: (
            self.count(wanted, self.lines[slice(*loop)]), loop[0] - loop[1]))
        inside = {i for a, b in loops if first <= a and b <= last and (a, b) != (first, last)
                  for i in range(a, b)}
        return [line for i, line in enumerate(self.lines) if first <= i < last and i not in inside]

    def count(self, pattern, lines=None):
        return sum(bool(re.match(pattern, op)) for op, _ in lines or self.lines)

    def registers(self):
        return 1 + max((int(n) for _, text in self.lines for n in re.findall(r"\bR(\d+)", text)),
                       default=0)


def parse(text):
    """{mangled name: Code} from the output of nvdisasm -c."""
    kernels, code = {}, None
    for line in text.splitlines():
        if start := re.match(r"\.text\.(\S+):", line):
            code = kernels[start[1]] = Code(start[1])
        elif code is None:
            continue
        elif label := re.match(r"(\.L_\w+):", line):
            code.labels[label[1]] = len(code.lines)
        elif found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@\S+\s+)?(([A-Z0-9]+)[^;]*);", line):
            code.lines.append((found[1].split()[0], found[1]))
    return kernels


def disassemble(nvdisasm, cubin):
    text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    kernels = parse(text)
    names = subprocess.run(["c++filt"], input="\n".join(kernels), capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return dict(zip(names, kernels.values()))


# ---- judging -----------------------------------------------------------------------------------


def judge(kernel, code):
    """(a row of the table, what is wrong with the kernel)"""
    inner = code.inner()
    access = "LDG" if kernel.loads else "STG"
    wide = 16 * code.count(access + r".*\.128", inner) + 8 * code.count(access + r".*\.64", inner)
    elements = wide / kernel.size / kernel.stored
    slots = len(inner) / elements if elements and kernel.n_bytes else None
    scalar = code.count(r"STG(?!.*\.(64|128))", inner) if kernel.n_bytes else 0
    local = code.count("LDL|STL")
    shared = kernel.tensor_cores and not kernel.nested and code.count("HMMA")
    row = [kernel.label, str(len(code.lines)), str(code.registers()), str(local),
           str(code.count(r"LDG.*\.128")), str(code.count(r"STG.*\.128")), str(scalar),
           str(code.count("HMMA")), f"{slots:.1f}" if slots else "-",
           f"{share(kernel, slots):.0%}" if slots else "-",
           f"{products(code):.0%}" if shared else "-"]
    wrong = []
    if local > kernel.local:
        wrong.append(f"{local} accesses to local memory: it spills")
    if scalar:
        wrong.append(f"{scalar} stores of less than 8 bytes in its loop")
    if kernel.n_bytes and not elements:
        wrong.append(f"its loop has no vector {'load' if kernel.loads else 'store'}")
    if kernel.rows and not (code.count(r"LDG.*\.128") and (kernel.loads or code.count(r"STG.*\.128"))):
        wrong.append(f"no vector loads{'' if kernel.loads else ' and stores'}")
    if kernel.slots and slots and slots > kernel.slots:
        wrong.append(f"{slots:.1f} issue slots an element, at most {kernel.slots} so far")
    if kernel.tensor_cores and not code.count("HMMA"):
        wrong.append("no product on tensor cores")
    return row, wrong


def share(kernel, slots):
    """The share of the bandwidth, if only issuing instructions limits the kernel."""
    return min(1.0, LANE_SLOTS / slots / (BANDWIDTH / kernel.n_bytes))


def products(code):
    """The share of PRODUCTS that the loop with the products allows."""
    loop = code.inner("HMMA")
    flop = 2 * 16 * 8 * 16 * code.count("HMMA", loop)
    cycles = max(len(loop) / 4, 4 * code.count("LDSM", loop), 2 * code.count("MUFU", loop),
                 flop / MMA_SYNC * CYCLES)
    return flop / cycles * CYCLES / PRODUCTS


HEAD = ["kernel", "code", "regs", "local", "ld128", "st128", "st<64", "HMMA", "slots", "bandwidth", "products"]


def look(kernels, codes):
    """The table, and [what is wrong]; codes: {file: {demangled name: Code}}"""
    rows, faults = [HEAD], []
    for kernel in kernels:
        found = [code for name, code in codes.get(kernel.file, {}).items()
                 if re.search(kernel.pattern, name)]
        if len(found) != 1:
            faults.append(f"{kernel.label}: {len(found)} kernels of {kernel.file}.cu are "
                          f"{kernel.pattern}, not 1")
            continue
        row, wrong = judge(kernel, found[0])
        rows.append(row)
        faults += [f"{kernel.label}: {fault}" for fault in wrong]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join([row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in
                                                    zip(row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines), faults


def find_nvdisasm():
    """nvdisasm of a CUDA toolkit, or the one that pip put into .tools."""
    tools = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".tools", "nvdisasm")
    return shutil.which("nvdisasm") or next(
        glob.iglob(os.path.join(tools, "nvidia", "*", "bin", "nvdisasm")), None)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folders", nargs="+", metavar="FOLDER")
    folders = p.parse_args().folders
    nvdisasm = find_nvdisasm()
    if not nvdisasm:
        print("sass: skipped: no nvdisasm (pip: nvidia-cuda-nvdisasm)", file=sys.stderr)
        sys.exit(77)
    codes = {}
    for folder in folders:
        for cubin in glob.glob(os.path.join(folder, "*.sm_90.cubin")):
            codes[os.path.basename(cubin).split(".")[0]] = disassemble(nvdisasm, cubin)
    table, faults = look(KERNELS, codes)
    print(f"Machine code for sm_90. `bandwidth`: predicted share on an {GPU}, nothing measured.\n")
    print(table)
    for fault in faults:
        print(f"sass: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
