"""Both pages in a real browser: they draw themselves, and what they show is what the data says."""

import html.parser
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keelmq import web
from keelmq.web.report import LIVE_POLICY

EXAMPLE = Path(__file__).parents[3] / "fixtures" / "dashboard" / "example.json"
CHROMIUM = shutil.which(os.environ.get("CHROMIUM", "chromium"))
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
DEADLINE_SECONDS = 50
VERDICT = (
    "3 fail-overs, the longest gap that a producer saw: 95 ms; SyncStateSet never below minInSyncReplicas."
)
READY = re.compile(r"<body[^>]* data-ready=\"1\"")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no chromium here; on Debian: apt-get install --no-install-recommends chromium fonts-dejavu-core",
)


class Text(html.parser.HTMLParser):
    """The text of a document outside of its scripts, one piece a line."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = False
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.pieces.append(data.strip())


def drawn(address: str, profile: Path) -> str:
    """The document after its scripts ran."""
    command = [
        str(CHROMIUM),
        *FLAGS,
        f"--user-data-dir={profile}",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ]
    done = subprocess.run([*command, address], capture_output=True, timeout=DEADLINE_SECONDS, check=True)
    return done.stdout.decode()


def check(document: str, *, charts: int) -> None:
    text = Text(document).pieces
    assert READY.search(document)
    assert document.count("<svg") == charts + 1  # and the logo
    assert VERDICT in text
    for piece in ("10:40:40.636", "10:40:49.343", "10:40:59.039", "71 ms", "95 ms", "78 ms", "51 ms"):
        assert piece in text
    assert text.count("broker-1 killed") == 2
    assert text.count("election") == 3
    assert text.count("shrink") == 1


def test_the_report(tmp_path: Path) -> None:
    """With a second group that has hostile names."""
    data = json.loads(EXAMPLE.read_bytes())
    hostile = "</script><img src=x onerror=alert(1)>"
    data["groups"].append(data["groups"][0] | {"broker_name": hostile})
    data["groups"][0]["failovers"][0]["reason"] = hostile
    data["inputs"].append("<b>bold</b>")
    report = tmp_path / "report.html"
    report.write_text(web.report_html(json.dumps(data).encode(), title="A <i>report</i>"))
    document = drawn(f"file://{report}", tmp_path / "profile")
    check(document, charts=5)
    text = Text(document).pieces
    for piece in (hostile, f"KeelCluster/{hostile}", "A <i>report</i>", "<b>bold</b>"):
        assert piece in text
    assert not re.search(
        r"<(img|b>bold|i>report)", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL)
    )


class Door(http.server.BaseHTTPRequestHandler):
    """What the name server's HTTP door serves, under the strict policy."""

    def do_GET(self) -> None:
        kinds = {".js": "text/javascript", ".css": "text/css"}
        if self.path == "/":
            self.answer(web.live_html().encode(), "text/html; charset=utf-8")
        elif self.path == "/v1/analytics/dashboard":
            self.answer(EXAMPLE.read_bytes(), "application/json")
        else:
            path = web.STATIC / self.path.removeprefix("/static/")
            self.answer(path.read_bytes(), kinds[path.suffix])

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", LIVE_POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def listener() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_the_live_page_under_its_policy(tmp_path: Path) -> None:
    with listener() as address:
        check(drawn(address, tmp_path / "profile"), charts=5)
