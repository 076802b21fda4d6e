"""The report, a single self-contained file, and the live dashboard: two pages from one script.

Data is a JSON block that no string in it can close, and the script inserts strings as text, never as HTML.
Both pages forbid requests to other hosts; the report has the hash of its script, so no other can run.
"""

import base64
import hashlib
import html
import string
from pathlib import Path

import msgspec

from keelmq.web.page_files import PAGES_VERSION, STEP_MS
from keelmq.web.page_reader import PageFiles

STATIC = Path(__file__).parent / "static"
"""What `npm run build` makes of keelmq/web/frontend."""
ANALYTICS = STATIC / "analytics"
PAGE = string.Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))

STYLE, SCRIPT = "analytics.css", "analytics.js"
NOT_BUILT = (
    "the pages are not built; an installed package has them, a checkout needs Node.js 20: "
    "cd keelmq/web/frontend && npm ci && npm run build"
)

GROUPS_MAX = 20
"""Groups of a fleet that a report has in full: the worst."""
DATA_BYTES_MAX = 1_100_000
"""Limit of the data, so that a report with its scripts is smaller than 2 MB."""

LIVE_TITLE = "KeelMQ dashboard"
LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)
PAGE_POLICY = f"{LIVE_POLICY}; frame-ancestors 'none'"
"""As a header of a page and its files; a page itself cannot say who may frame it."""
REPORT_POLICY = (
    "default-src 'none'; script-src {hash}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def is_built() -> bool:
    """Returns whether there are the files of the analytics page."""
    return (ANALYTICS / SCRIPT).is_file()


def report_html(files: PageFiles, *, title: str) -> str:
    """Returns one self-contained page of the newest generation: the fleet, and the GROUPS_MAX worst groups.

    Each group has the finest series that leaves the page below DATA_BYTES_MAX. Raises NoPagesError,
    PageFileError or RangeError. See is_built().
    """
    generation = files.generation()
    index = generation.index
    worst = index.groups[:GROUPS_MAX]
    names = {(each.cluster_name, each.broker_name) for each in worst}
    kept = [each for each in index.incidents if (each.cluster_name, each.broker_name) in names]
    left = msgspec.structs.replace(index, groups=worst, incidents=kept)
    for step_ms in (0, *sorted(STEP_MS.values())):
        groups = {
            f"{cluster}/{broker}": files.group(
                generation, cluster, broker, from_ts=index.from_ts, to_ts=index.to_ts + 1, step_ms=step_ms
            )
            for cluster, broker in sorted(names)
        }
        data = msgspec.json.encode({"v": PAGES_VERSION, "index": left, "groups": groups})
        if len(data) <= DATA_BYTES_MAX:
            break
    script = _text(SCRIPT)
    text = data.decode().replace("<", "\\u003c")
    return PAGE.substitute(
        title=html.escape(title),
        policy=REPORT_POLICY.format(hash=_source_hash(script)),
        style=f"<style>{_text(STYLE)}</style>",
        console="",
        scripts=f'<script id="data" type="application/json">{text}</script>\n<script>{script}</script>',
    )


def live_html(console: str = "") -> str:
    """Returns the page that fetches ./v1/analytics/fleet itself, with its script from ./static/. `console`:
    where a console is, for a link; "": there is none."""
    return PAGE.substitute(
        title=LIVE_TITLE,
        policy=LIVE_POLICY,
        style=f'<link rel="stylesheet" href="./static/{STYLE}">',
        console=html.escape(console),
        scripts=f'<script src="./static/{SCRIPT}" defer></script>',
    )


def _text(name: str) -> str:
    return (ANALYTICS / name).read_text(encoding="utf-8")


def _source_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
