"""The report, a single self-contained file, and the live dashboard: two pages from one set of scripts.

Data is a JSON block that no string in it can close, and the scripts insert strings as text, never as HTML.
Both pages forbid requests to other hosts; the report lists the hashes of its scripts, so no other script can
run.
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
PAGE = string.Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))

STYLES = ("dashboard.css",)
SCRIPTS = (
    "vendor/echarts-6.1.0.min.js", "tables.js", "model.js", "states.js", "charts.js", "sections.js",
    "group.js", "live.js", "fleet.js", "dashboard.js",
)  # fmt: skip
"""In the order in which they must run."""

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
    "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def report_html(files: PageFiles, *, title: str) -> str:
    """Returns one self-contained page of the newest generation: the fleet, and the GROUPS_MAX worst groups.

    Each group has the finest series that leaves the page below DATA_BYTES_MAX. Raises NoPagesError,
    PageFileError or RangeError.
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
    scripts = [_text(name) for name in SCRIPTS]
    text = data.decode().replace("<", "\\u003c")
    blocks = [f'<script id="data" type="application/json">{text}</script>']
    blocks += [f"<script>{script}</script>" for script in scripts]
    return PAGE.substitute(
        title=html.escape(title),
        policy=REPORT_POLICY.format(hashes=" ".join(_source_hash(script) for script in scripts)),
        style="".join(f"<style>{_text(name)}</style>" for name in STYLES),
        scripts="\n".join(blocks),
    )


def live_html() -> str:
    """Returns the page that fetches ./v1/analytics/fleet itself, with scripts from ./static/."""
    return PAGE.substitute(
        title=LIVE_TITLE,
        policy=LIVE_POLICY,
        style="".join(f'<link rel="stylesheet" href="./static/{name}">' for name in STYLES),
        scripts="\n".join(f'<script src="./static/{name}" defer></script>' for name in SCRIPTS),
    )


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _source_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
