#!/bin/sh
# A picture of a report: tools/screenshot.sh REPORT.html OUT.png [dark]. WIDTH and HEIGHT from the environment.
set -eu
[ $# -ge 2 ] || { echo "usage: tools/screenshot.sh REPORT.html OUT.png [dark]" >&2; exit 2; }
BROWSER=$(command -v "${CHROMIUM:-chromium}") || {
  echo "screenshot: no chromium; on Debian: apt-get install --no-install-recommends chromium fonts-dejavu-core" >&2
  exit 1
}
case $1 in *://*) page=$1 ;; *) page=file://$(realpath "$1") ;; esac
SCHEME=1
[ "${3:-}" != dark ] || SCHEME=2
PROFILE=$(mktemp -d)
trap 'rm -rf "$PROFILE"' EXIT
mkdir -p "$PROFILE/Default"
# The browser's own theme is what prefers-color-scheme answers: 1 light, 2 dark.
printf '{"browser":{"theme":{"color_scheme2":%s}}}' "$SCHEME" > "$PROFILE/Default/Preferences"
"$BROWSER" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
  --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$PROFILE" \
  --virtual-time-budget=5000 --window-size="${WIDTH:-1240},${HEIGHT:-1330}" --screenshot="$2" "$page" 2> "$PROFILE/log" \
  || { cat "$PROFILE/log" >&2; exit 1; }
