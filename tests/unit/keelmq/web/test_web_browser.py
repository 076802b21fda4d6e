"""Both pages in a real browser: they draw themselves, and what they show is what the data says."""

import html.parser
import http.server
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest

from keelmq import web
from keelmq.runtime.clock import wall_ms
from keelmq.web import live_files
from keelmq.web.live_files import LiveFleet, LiveFleetGroup
from keelmq.web.page_files import packed, unpacked
from keelmq.web.page_reader import PageFiles
from keelmq.web.report import LIVE_POLICY
from tests.support.page_parts import example, with_groups, write_example

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
    CHROMIUM is None or not web.is_built(),
    reason="no chromium here, or no built pages: apt-get install --no-install-recommends chromium "
    "fonts-dejavu-core (Debian); cd keelmq/web/frontend && npm ci && npm run build",
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


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    """With hostile names."""
    data = example()
    hostile = "</script><img src=x onerror=alert(1)>"
    data["groups"][0]["failovers"][0]["reason"] = hostile
    data["inputs"].append("<b>bold</b>")
    report = tmp_path / "report.html"
    report.write_text(web.report_html(PageFiles(write_example(tmp_path, data)), title="A <i>report</i>"))
    document = drawn(f"file://{report}", tmp_path / "profile")
    check(document, charts=5)
    text = Text(document).pieces
    for piece in (hostile, "A <i>report</i>", "<b>bold</b>"):
        assert piece in text
    assert not re.search(
        r"<(img|b>bold|i>report)", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL)
    )


@pytest.mark.slow
def test_the_report_of_two_groups_begins_with_the_fleet(tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    report = tmp_path / "report.html"
    data = with_groups([("KeelCluster", "broker-a"), ("KeelCluster", hostile)])
    report.write_text(web.report_html(PageFiles(write_example(tmp_path, data)), title="t"))
    document = drawn(f"file://{report}", tmp_path / "profile")
    text = Text(document).pieces
    assert f"KeelCluster/{hostile}" in text and "Fleet: incidents" in text
    assert not re.search(r"<img", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL))
    group = drawn(f"file://{report}#group=KeelCluster%2Fbroker-a", tmp_path / "profile")
    check(group, charts=5)


PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const inBox = (node) => node.closest(".scroll");
  const wide = [...document.querySelectorAll("body *")].filter(
    (node) => node.getBoundingClientRect().right > innerWidth + 1 && !inBox(node));
  const boxes = [...document.querySelectorAll(".scroll")].filter(
    (box) => box.scrollWidth > box.clientWidth + 1);
  const at = [...wide.map((node) => node.outerHTML.slice(0, 60)), ...boxes.map((box) => box.ariaLabel)];
  const found = [innerWidth, document.documentElement.scrollWidth, wide.length, boxes.length];
  parent.postMessage(`found ${found.join(" ")}. ${at.join(", ")}`, "*");
}, 2_000));</script>"""
FRAME = """<body><script>
addEventListener("message", (event) => { document.body.textContent = event.data; });
</script>
<iframe width="WIDTH" height="900" style="border: 0" src="page.html#HASH"></iframe></body>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("at", ["", "group=KeelCluster%2Fbroker-a"])
def test_a_page_is_not_wider_than_its_window(tmp_path: Path, width: int, at: str) -> None:
    """A frame: a window of this browser is 500 pixels wide or more. On a phone wide tables scroll in their
    own boxes; on 1,280 pixels those of the fleet fit."""
    data = with_groups([("KeelCluster", "broker-a"), ("KeelCluster", "b" * (40 if width == 390 else 20))])
    text = web.report_html(PageFiles(write_example(tmp_path / "out", data)), title="t")
    head, _, rest = text.rpartition("</body>")
    assert head.count("Content-Security-Policy") == 1
    page = head.replace("Content-Security-Policy", "X-None") + PROBE + "</body>" + rest
    (tmp_path / "page.html").write_text(page)
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)).replace("HASH", at))
    document = drawn(f"file://{frame}", tmp_path / "profile")
    found = re.search(r"found ([\d ]+)\.", document)
    assert found is not None, document
    window, scroll, outside, boxes = map(int, found[1].split())
    assert (window, outside) == (width, 0), document
    assert scroll <= width
    assert boxes > 0 if width == 390 else at or boxes == 0, document


class PageServer(http.server.BaseHTTPRequestHandler):
    """What a name server serves, under the strict policy."""

    directory = Path()

    def do_GET(self) -> None:
        kinds = {".js": "text/javascript", ".css": "text/css"}
        path, _, query = self.path.partition("?")
        if path == "/":
            self.answer(web.live_html().encode(), "text/html; charset=utf-8")
        elif path.startswith("/v1/analytics/"):
            files = PageFiles(self.directory)
            generation = files.generation()
            _, packed_index = files.live.merged(generation.packed_index, generation.current.generation)
            found: object = msgspec.Raw(unpacked(packed_index))
            if path != "/v1/analytics/fleet":
                cluster, broker = map(unquote, path.split("/")[-2:])
                times = {f"{name}_ts": int(value) for name, value in parse_qsl(query)}
                found = files.group(files.generation(), cluster, broker, **times)  # type: ignore[arg-type]
            self.answer(msgspec.json.encode(found), "application/json")
        else:
            file = web.ANALYTICS / path.removeprefix("/static/")
            self.answer(file.read_bytes(), kinds[file.suffix])

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
def listener(directory: Path) -> Iterator[str]:
    handler = type("Handler", (PageServer,), {"directory": directory})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_the_live_page_under_its_policy(tmp_path: Path) -> None:
    with listener(write_example(tmp_path / "out")) as address:
        check(drawn(address, tmp_path / "profile"), charts=5)


FLEET = [("KeelCluster", f"broker-{i:02}") for i in range(60)]


@pytest.mark.slow
def test_a_fleet_shows_groups_incidents_and_what_is_unknown(tmp_path: Path) -> None:
    data = with_groups(FLEET)
    del data["groups"][3]["lag"]["ms_p99"][5]  # parallel lists: the last one is unknown then
    data["groups"][3]["lag"]["ts"].pop(5)
    for name, values in data["groups"][3]["lag"].items():
        if name not in ("ts", "ms_p99"):
            values.pop(5)
    with listener(write_example(tmp_path / "out", data)) as address:
        document = drawn(f"{address}#metric=ms_p99", tmp_path / "profile")
        text = Text(document).pieces
        assert READY.search(document)
        assert "60 incidents in 60 of 60 groups, 0 serious: fail-over 60." in text
        assert "1–40 of 60" in text
        assert len(re.findall(r"<td class=\"heat ", document)) == 40 * 31
        assert len(re.findall(r"<td class=\"heat hu\"", document)) == 1, "unknown is hatched, and never 0"
        assert len(re.findall(r'<td [^>]*tabindex="0"', document)) == 1, "one cell takes the focus"
        second = drawn(f"{address}#page=2&q=broker-5+keel&sort=name", tmp_path / "profile")
        assert "1–10 of 10" in Text(second).pieces


@pytest.mark.slow
def test_a_part_of_a_groups_time_is_in_the_address(tmp_path: Path) -> None:
    with listener(write_example(tmp_path / "out", with_groups(FLEET[:2]))) as address:
        place = "#group=KeelCluster%2Fbroker-01&from=1795257640000&to=1795257646000&replica=2"
        text = Text(drawn(address + place, tmp_path / "profile")).pieces
    assert any("10:40:40 – 10:40:46 UTC in windows of 1 s" in piece for piece in text)
    assert "replica 2 ✕" in text


@pytest.mark.slow
def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    data = example()
    data["groups"][0]["totals"]["below_min_ms"] = None
    with listener(write_example(tmp_path / "out", data)) as address:
        document = drawn(address, tmp_path / "profile")
    assert READY.search(document)
    assert "not known whether the SyncStateSet was below minInSyncReplicas" in document


@pytest.mark.slow
def test_old_data_is_said_to_be_stale(tmp_path: Path) -> None:
    with listener(write_example(tmp_path / "out", interval_ms=60_000, generated_ts=1_000_000)) as address:
        text = Text(drawn(address, tmp_path / "profile")).pieces
    assert any(piece.startswith("Stale: computed ") and "due every 1 min" in piece for piece in text)
    fresh = write_example(tmp_path / "fresh", interval_ms=10**13, generated_ts=1_000_000)
    with listener(fresh) as address:
        text = Text(drawn(address, tmp_path / "profile")).pieces
    assert not any(piece.startswith("Stale") for piece in text)


def write_live(out: Path, age_ms: int, *more: LiveFleetGroup) -> None:
    """The last hour of two groups: one without a master, one with lag; and of more."""
    data_to_ts = wall_ms() - age_ms
    start = data_to_ts // 60_000 * 60_000 - 59 * 60_000
    groups = [
        LiveFleetGroup(cluster_name="KeelCluster", broker_name="broker-00", ms_p99=[7_000] * 60,
                       ms_max=[8_000] * 60, samples_ts=data_to_ts),
        LiveFleetGroup(cluster_name="KeelCluster", broker_name="broker-01", ms_p99=[1] * 58 + [None] * 2,
                       ms_max=[1] * 58 + [None] * 2, no_master_ms=[0] * 58 + [60_000] * 2),
        *more,
    ]  # fmt: skip
    fleet = LiveFleet(
        computed_ts=data_to_ts, data_to_ts=data_to_ts, every_ms=5_000, start_ts=start, groups=groups
    )
    path = out / live_files.FLEET
    path.parent.mkdir(parents=True)
    path.write_bytes(packed(msgspec.json.encode(fleet)))


@pytest.mark.slow
@pytest.mark.parametrize(("age_ms", "is_stale"), [(2_000, False), (3_600_000, True)])
def test_the_last_hour_of_the_fleet_is_live(tmp_path: Path, age_ms: int, is_stale: bool) -> None:
    out = write_example(tmp_path / "out", with_groups(FLEET[:2]))
    write_live(out, age_ms)
    with listener(out) as address:
        document = drawn(address, tmp_path / "profile")
    text = " ".join(Text(document).pieces)
    assert (
        "This minute: 1 group without a master, 1 group without a sample of a master; worst p99 lag 7 s."
        in text
    )
    table = document[document.index('class="heatmap live"') :].split("</table>")[0]
    assert table.index("broker-01") < table.index("broker-00"), "without a master first"
    assert len(re.findall(r'<td class="heat h5"[^>]*>M<', table)) == 2
    assert len(re.findall(r'<td class="heat h4"', table)) == 60
    assert re.search(r"live: data to \d\d:\d\d:\d\d UTC", text)
    assert ("Live data is stale: it ends 1 h ago" in text) == is_stale


@pytest.mark.slow
def test_what_controllers_do_not_tell_is_never_fine_on_the_live_page(tmp_path: Path) -> None:
    """Of a group that has samples and no events, one with a gap, and one whose minimum is unknown."""
    lag, name = {"ms_p99": [1] * 60, "ms_max": [1] * 60}, "KeelCluster"
    nothing: list[int | None] = [None] * 60
    zero: list[int | None] = [0] * 60
    out = write_example(tmp_path / "out", with_groups(FLEET[:2]))
    write_live(
        out, 2_000,
        LiveFleetGroup(cluster_name=name, broker_name="broker-02", below_min_ms=nothing, no_master_ms=nothing,
                       unknown_ms=nothing, **lag),
        LiveFleetGroup(cluster_name=name, broker_name="broker-03", below_min_ms=zero, no_master_ms=zero,
                       unknown_ms=[*zero[:59], 30_000], **lag),
        LiveFleetGroup(cluster_name=name, broker_name="broker-04", below_min_ms=nothing, **lag),
        LiveFleetGroup(cluster_name=name, broker_name="broker-05", **lag),
    )  # fmt: skip
    with listener(out) as address:
        document = drawn(address, tmp_path / "profile")
    text = " ".join(Text(document).pieces)
    assert "3 groups in a state that is not known; worst p99 lag 7 s." in text
    table = document[document.index('class="heatmap live"') :].split("</table>")[0]
    found = {
        row.partition("</a>")[0][-9:]: re.findall(r'class="heat ([^"]*)"[^>]*>([^<]*)<', row)
        for row in table.split("<a ")[1:]
    }
    assert found["broker-02"] == [("h0 part", "?")] * 60
    assert found["broker-03"] == [("h0", "")] * 59 + [("h0 part", "?")]
    assert found["broker-04"] == [("h0 part", "?")] * 60
    assert found["broker-05"] == [("h0", "")] * 60
    assert "state unknown for 30 s" in table and "minimum unknown" in table
