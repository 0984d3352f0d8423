#!/bin/sh
# tests/verified.py tells which parts' files are not those with which they passed, and turns by commits: verified.sh
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
checker=$top/tests/verified.py
command -v git >/dev/null || {
    echo "skipped: there is no git (package git)"
    exit 77
}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
mkdir -p tests src/ops src/autograd docs/lessons tests/lessons tests/src/gradcheck src/backends
cp "$checker" tests
for file in src/ops/a.c src/autograd/a.c docs/lessons/a.md docs/a.md tests/lessons/a.py tests/src/gradcheck/a.c src/backends/a.c run; do
    echo 1 >$file
done

failed=0
wrong() {
    echo "verified.sh: $*"
    failed=1
}
# says WORDS PART: something differs, and this is what the check says.
says() {
    if said=$(python3 tests/verified.py "$2"); then
        wrong "$2 is verified, but: $1"
    else
        case $said in
        *"$1"*) ;;
        *) wrong "$2: does not say \"$1\": $said" ;;
        esac
    fi
}
accepts() { python3 tests/verified.py "$1" >said.txt || wrong "$1 is not verified: $(cat said.txt)"; }
commit() {
    git add -A
    git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -q --allow-empty -m one
}

says "git does not know" op
[ -z "$(python3 tests/verified.py --quarter)" ] || wrong "a quarter without git"
git init -q
commit
says "tests/verified.txt does not have it" op
[ -z "$(python3 tests/verified.py --record release scripts/4 cuda/4)" ] || wrong "what depends on all files is recorded"
python3 tests/verified.py --record release op | grep -q 'has what op passed' || wrong "op is not recorded"
accepts op
says "tests/verified.txt does not have it" page
commit
accepts op
echo 2 >docs/a.md
accepts op
python3 tests/verified.py --record kernels | grep -q 'left as it is' || wrong "a tree with changes is recorded"
echo 2 >src/ops/a.c
says "not all changes are committed" op
commit
says "src/ops is not what" op
python3 tests/verified.py --record kernels >/dev/null
says "src/ops is not what" op
says "tests/models is not what" kernels # it is not there
python3 tests/verified.py --record op >/dev/null
commit
accepts op
echo 1 >src/ops/new.c
says "not all changes are committed" op
rm src/ops/new.c
[ "$(python3 tests/verified.py gone 2>/dev/null || echo $?)" = 2 ] || wrong "an unknown part is not refused"
for part in $(sed -n 's/^    "\([a-z]*\)": "[^"]*",$/\1/p' tests/verified.py); do
    for path in $(sed -n "s/^    \"$part\": \"\([^\"]*\)\",\$/\1/p" tests/verified.py); do
        [ -e "$top/$path" ] || wrong "$part: there is no $path"
    done
done
turns=
for _ in 1 2 3 4; do
    turns="$turns$(python3 tests/verified.py --quarter)"
    commit
done
case 0123012 in
*"$turns"*) ;;
*) wrong "four commits have the quarters $turns" ;;
esac
git clone -q --depth 1 "file://$tree" shallow
[ -z "$(cd shallow && python3 tests/verified.py --quarter)" ] || wrong "commits of a shallow clone are counted"
mkdir inner && cp -r tests src inner
[ -z "$(cd inner && python3 tests/verified.py --quarter)" ] || wrong "a tree within another repository takes its commits"
exit $failed
