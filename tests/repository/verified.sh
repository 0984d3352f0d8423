#!/bin/sh
# tests/verified.py tells which folders are not as the last full run found them, and turns by commits: verified.sh
set -eu
checker=$(cd "$(dirname "$0")/.." && pwd)/verified.py
command -v git >/dev/null || {
    echo "skipped: there is no git (package git)"
    exit 77
}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
mkdir -p tests/src/base src/base src/ops docs
cp "$checker" tests
for file in tests/src/base/a.c src/base/a.c src/ops/a.c docs/a.md run; do echo 1 >$file; done

failed=0
wrong() {
    echo "verified.sh: $*"
    failed=1
}
# says WORDS PATH...: something differs, and this is what the check says.
says() {
    wanted=$1
    shift
    if said=$(python3 tests/verified.py "$@"); then
        wrong "$* are verified, but: $wanted"
    else
        case $said in
        *"$wanted"*) ;;
        *) wrong "$*: does not say \"$wanted\": $said" ;;
        esac
    fi
}
accepts() { python3 tests/verified.py "$@" >said.txt || wrong "$* are not verified: $(cat said.txt)"; }
commit() {
    git add -A
    git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -q --allow-empty -m one
}

says "git does not know" src/base
[ -z "$(python3 tests/verified.py --quarter)" ] || wrong "a quarter without git"
git init -q
commit
says "there is no tests/verified.txt" src/base
python3 tests/verified.py --record >/dev/null
accepts src/base tests/src/base run src tests
commit
accepts src tests
accepts src/base tests/src/base docs/a.md run
echo 2 >src/ops/a.c
accepts src/base
says "not all changes are committed" src/base src/ops
python3 tests/verified.py --record | grep -q 'left as it is' || wrong "a tree with changes is recorded"
commit
accepts src/base tests/src/base
says "src/ops is not what" src/base src/ops
says "src is not what" tests src
echo 1 >src/base/new.c
says "not all changes are committed" src/base
rm src/base/new.c
says "src/gone is not what" src/gone
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
