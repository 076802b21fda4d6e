#!/bin/sh
# ./test with every Python from 3.11 on that is on the PATH, each in a checkout of its own below build/.
# usage: tools/test_pythons.sh [--ci | PYTEST_ARGUMENTS...]
set -u
ROOT=$(CDPATH='' cd "$(dirname "$0")/.." && pwd)
failed=""
for minor in 11 12 13 14 15; do
  python=python3.$minor
  "$python" -c '' 2> /dev/null || continue
  checkout="$ROOT/build/$python"
  if [ -d "$checkout" ]; then
    git -C "$checkout" fetch --quiet origin HEAD && git -C "$checkout" reset --quiet --hard FETCH_HEAD
  else
    git clone --quiet "$ROOT" "$checkout"
  fi || exit 1
  echo "== $("$python" -V) in $checkout"
  (cd "$checkout" && UV_PYTHON=$("$python" -c 'import sys; print(sys.executable)') ./test "$@") || failed="$failed $python"
done
[ -z "$failed" ] || { echo "failed with:$failed" >&2; exit 1; }
