"""The report, a single self-contained file, and the live dashboard: two pages from one set of scripts.

Data is a JSON block that no string in it can close, and the scripts insert strings as text, never as HTML.
Both pages forbid requests to other hosts; the report lists the hashes of its scripts, so no other script can
run.
"""

import base64
import hashlib
import html
import json
import string
from pathlib import Path
from typing import NoReturn

DASHBOARD_VERSION = 1
STATIC = Path(__file__).parent / "static"
PAGE = string.Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))

STYLES = ("dashboard.css",)
SCRIPTS = ("vendor/echarts-6.1.0.min.js", "tables.js", "charts.js", "dashboard.js")
"""In the order in which they must run."""

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


def report_html(dashboard: bytes, *, title: str) -> str:
    """Returns one self-contained page. Raises ValueError if `dashboard` is not a dashboard.json of this
    version."""
    data = json.dumps(_checked(dashboard), separators=(",", ":")).replace("<", "\\u003c")
    scripts = [_text(name) for name in SCRIPTS]
    blocks = [f'<script id="data" type="application/json">{data}</script>']
    blocks += [f"<script>{script}</script>" for script in scripts]
    return PAGE.substitute(
        title=html.escape(title),
        policy=REPORT_POLICY.format(hashes=" ".join(_source_hash(script) for script in scripts)),
        style="".join(f"<style>{_text(name)}</style>" for name in STYLES),
        scripts="\n".join(blocks),
    )


def live_html() -> str:
    """Returns the page that fetches ./v1/analytics/dashboard itself, with scripts from ./static/."""
    return PAGE.substitute(
        title=LIVE_TITLE,
        policy=LIVE_POLICY,
        style="".join(f'<link rel="stylesheet" href="./static/{name}">' for name in STYLES),
        scripts="\n".join(f'<script src="./static/{name}" defer></script>' for name in SCRIPTS),
    )


def _checked(dashboard: bytes) -> dict[str, object]:
    try:
        data = json.loads(dashboard, parse_constant=_no_constant)
    except ValueError as error:  # UnicodeDecodeError is one too
        raise ValueError(
            f"the dashboard is not JSON ({error}); write it again: keelmq analytics run"
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get("groups"), list):
        raise ValueError(
            'the dashboard has no "groups"; name a dashboard.json that keelmq analytics run wrote'
        )
    if data.get("v") != DASHBOARD_VERSION:
        raise ValueError(
            f"the dashboard has version {data.get('v')!r}, this release draws version {DASHBOARD_VERSION}; "
            "write it again with this release: keelmq analytics run"
        )
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _source_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
