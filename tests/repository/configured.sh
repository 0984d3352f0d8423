#!/bin/sh
# After packages have come, ./run builds what a fresh clone would: a build folder that was configured without MPI,
# oneDNN, nvcc and a C++ compiler is configured again, and once they are gone again it says what is not built, and
# why: configured.sh [TREE]
set -eu
here=$(cd "${1:-$(dirname "$0")/../..}" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
failed=0
wrong() {
    echo "configured.sh: $*"
    failed=1
}

mkdir "$tree" "$scratch/bare" "$scratch/asked" "$scratch/pc"
cd "$here"
tar -c --exclude='./build*' --exclude=./.git --exclude=./.tools . | tar -x -C "$tree"
cd "$tree"

# A PATH on which nothing is found of what may be missing, and pkg-config's files without MPI's; sh's `command -v` finds the rest.
# In one process: there are thousands of them.
python3 - "$scratch" "$(pkg-config --variable pc_path pkg-config)" <<'TEXT'
import fnmatch, os, sys

def link(folders, to, missing, wanted):
    seen = set(os.listdir(to))
    for folder in filter(os.path.isdir, folders.split(":")):
        for name in os.listdir(folder):
            path = os.path.abspath(os.path.join(folder, name))
            if name not in seen and wanted(path) and not any(fnmatch.fnmatch(name, word) for word in missing.split()):
                seen.add(name)
                os.symlink(path, os.path.join(to, name))

link(os.environ["PATH"], f"{sys.argv[1]}/bare", "mpi* nvcc *g++* c++* clang++* *-c++* cc ninja",
     lambda path: os.access(path, os.X_OK) and not os.path.isdir(path))
link(sys.argv[2], f"{sys.argv[1]}/pc", "mpi* ompi*", lambda path: path.endswith(".pc") and os.path.exists(path))
TEXT
# This compiler finds no header of oneDNN.
cat >"$scratch/bare/cc" <<TEXT
#!/bin/sh
for word; do
    case \$word in
    *.c) ! grep -q dnnl.h "\$word" || exit 1 ;;
    esac
done
exec $(command -v cc) "\$@"
TEXT
# Nothing is compiled here: what ninja is asked for is written down.
cat >"$scratch/asked/ninja" <<TEXT
#!/bin/sh
case "\$1 \$2 \${3:-}" in
"-C build "[!-]* | "-C build ") printf '%s\n' "\$*" >>"$scratch/asked.txt" ;;
*) exec $(command -v ninja) "\$@" ;;
esac
TEXT
chmod +x "$scratch/bare/cc" "$scratch/asked/ninja"

# described FOLDER: the names of its targets and tests.
described() { cat "$1/meson-info/intro-targets.json" "$1/meson-info/intro-tests.json" | grep -o '"name": "[^"]*"' | sort; }
# demo PATH FOLDER FILE: ./run demo, and what it has configured; there is no program yet that it could start.
demo() {
    : >"$scratch/asked.txt"
    PATH=$scratch/asked:$1 ./run demo >"$scratch/out.txt" 2>&1 || true
    [ "$(cat "$scratch/asked.txt")" = '-C build demo' ] ||
        wrong "demo asked ninja for \"$(cat "$scratch/asked.txt")\": $(cat "$scratch/out.txt")"
    described "$2" >"$scratch/$3"
}
bare() { PKG_CONFIG_LIBDIR=$scratch/pc demo "$scratch/bare" build "$1"; }

bare without.txt
for part in MPI oneDNN CUDA 'The CUDA simulator'; do
    grep -q "^$part: not built, because " build/left-out.txt ||
        wrong "nothing says that $part is not built: $(cat build/left-out.txt)"
done
said=$(python3 tests/total.py left-out:build/left-out.txt) || true
case $said in
*"skipped: MPI: not built, because pkg-config finds no MPI"*"4 skipped") ;;
*) wrong "total.py prints $said" ;;
esac

demo "$PATH" build with.txt
grep -q 'configuring again' "$scratch/out.txt" || wrong "packages have come: $(cat "$scratch/out.txt")"
meson setup fresh --buildtype=release -Dgpu_code=unoptimized >/dev/null
described fresh >"$scratch/fresh.txt"
diff "$scratch/with.txt" "$scratch/fresh.txt" || wrong 'a folder that was configured again differs from a fresh one'
cmp build/left-out.txt fresh/left-out.txt || wrong "left out: $(cat build/left-out.txt)"
demo "$PATH" build again.txt
! grep -q 'configuring again' "$scratch/out.txt" || wrong 'configured again though nothing has come'
bare gone.txt
diff "$scratch/gone.txt" "$scratch/without.txt" || wrong 'packages have gone, but not their targets and tests'
exit $failed
