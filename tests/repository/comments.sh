#!/bin/sh
# A comment is a sentence that begins with its subject or its verb, not with "Of ..." or "Who ...": comments.sh [TREE]
set -eu
cd "${1:-$(dirname "$0")/../..}"
! grep -rnE '/\* (Of|Whose|Whom|Who|As to|Be it) ' src models lab program include
