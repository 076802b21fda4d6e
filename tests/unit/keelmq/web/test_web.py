"""The two pages as text: no data becomes HTML, nothing is fetched from elsewhere, sizes hold."""

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keelmq import web
from keelmq.web.api_docs import VENDOR
from keelmq.web.live_files import LiveFleet, LiveFleetGroup
from keelmq.web.page_files import ConsumerSeries, Series, series_file
from keelmq.web.page_reader import PageFiles
from keelmq.web.report import GROUPS_MAX, LIVE_POLICY, SCRIPT, STYLE
from tests.support.page_parts import GENERATION, example, with_groups, write_example, write_group, write_index

ROOT = Path(__file__).parents[4]
HOSTILE = '</script><b onload="x()">&amp;\u2028<!--<script>'
REPORT_BYTES_MAX = 2_000_000
OWN_SCRIPTS = sorted((ROOT / "keelmq/web/frontend/src/analytics").glob("*.js"))

needs_build = pytest.mark.skipif(not web.is_built(), reason=web.NOT_BUILT)


class Page(html.parser.HTMLParser):
    """The tags of a page as a browser takes them, with the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs) if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
            self._script = None

    def data(self) -> Any:
        (text,) = [text for attributes, text in self.scripts if attributes.get("id") == "data"]
        return json.loads(text)


def report(directory: Path, data: Any = None, *, title: str = "t", **index: Any) -> str:
    return web.report_html(PageFiles(write_example(directory, data, **index)), title=title)


@needs_build
def test_the_report_carries_its_data(tmp_path: Path) -> None:
    data = Page(report(tmp_path)).data()
    assert data["v"] == 1 and list(data["groups"]) == ["KeelCluster/broker-a"]
    answer = data["groups"]["KeelCluster/broker-a"]
    (group,) = example()["groups"]
    assert answer["group"]["failovers"] == group["failovers"]
    assert answer["series"]["lag"]["bytes_max"] == group["lag"]["bytes_max"]
    assert data["index"]["groups"][0]["broker_name"] == "broker-a"


@needs_build
def test_a_report_of_a_fleet_has_the_worst_groups_and_says_so(tmp_path: Path) -> None:
    names = [("c", f"b{i:02}") for i in range(GROUPS_MAX + 5)]
    page = report(tmp_path, with_groups(names))
    data = Page(page).data()
    assert [each["broker_name"] for each in data["index"]["groups"]] == [
        name for _, name in names[:GROUPS_MAX]
    ]
    assert len(data["groups"]) == GROUPS_MAX and data["index"]["groups_total"] == GROUPS_MAX + 5
    assert {each["broker_name"] for each in data["index"]["incidents"]} <= {
        name for _, name in names[:GROUPS_MAX]
    }
    assert len(page.encode()) < REPORT_BYTES_MAX


@needs_build
def test_a_long_history_is_shown_in_wider_windows(tmp_path: Path) -> None:
    """Minutes of a day for 20 groups would be larger than a report may be."""
    names = [("c", f"b{i:02}") for i in range(GROUPS_MAX)]
    write_example(tmp_path, with_groups(names))
    start, count = 1_795_219_200_000, 1_440
    columns: dict[str, list[int | None]] = {f"{unit}_p99": [123_456] * count for unit in "abcdefgh"}
    minutes = Series(resolution="minute", start_ts=start, step_ms=60_000, count=count, lag=columns)
    hours = Series(resolution="hour", start_ts=start, step_ms=3_600_000, count=24, lag={"ms_p99": [7] * 24})
    for cluster, broker in names:
        detail = {"cluster_name": cluster, "broker_name": broker}
        files = {series_file("minute", start): minutes, series_file("hour", start): hours}
        write_group(tmp_path, detail, files)
    files_of = PageFiles(tmp_path)
    index = msgspec.structs.replace(
        files_of.generation().index, from_ts=start, to_ts=start + 86_399_999, resolutions=["minute", "hour"],
        detail_ms=None,
    )  # fmt: skip
    write_index(tmp_path, index, generation=GENERATION)
    page = web.report_html(PageFiles(tmp_path), title="t")
    assert {each["series"]["resolution"] for each in Page(page).data()["groups"].values()} == {"hour"}
    assert len(page.encode()) < REPORT_BYTES_MAX


@needs_build
def test_strings_cannot_leave_their_block(tmp_path: Path) -> None:
    data = example()
    group = data["groups"][0]
    group["broker_name"] = group["cluster_name"] = HOSTILE
    group["failovers"][0].update(reason=HOSTILE, killed_program=HOSTILE)
    data["inputs"] = [HOSTILE]
    page = Page(report(tmp_path / "hostile", data, title=HOSTILE))
    plain = Page(report(tmp_path / "plain"))
    found = page.data()
    assert found["index"]["inputs"] == [HOSTILE]
    assert found["groups"][f"{HOSTILE}/{HOSTILE}"]["group"]["failovers"] == group["failovers"]
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [text for _, text in page.scripts[1:]] == [text for _, text in plain.scripts[1:]]


def test_no_script_of_ours_makes_html_of_strings() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    for path in OWN_SCRIPTS:
        assert not sinks.search(path.read_text()), path
    assert OWN_SCRIPTS


@needs_build
def test_no_file_ends_its_own_block() -> None:
    script, style = ((web.ANALYTICS / name).read_text().lower() for name in (SCRIPT, STYLE))
    assert "</script" not in script and "<!--" not in script and "</style" not in style


@needs_build
def test_the_report_is_small(tmp_path: Path) -> None:
    assert len(report(tmp_path).encode()) < REPORT_BYTES_MAX


@needs_build
@pytest.mark.parametrize("which", ["live", "report"])
def test_nothing_comes_from_elsewhere(which: str, tmp_path: Path) -> None:
    page = web.live_html() if which == "live" else report(tmp_path)
    for tag, attributes in Page(page).tags:
        assert not any(name.startswith("on") for name in attributes), f"inline handler in <{tag}>"
        if tag != "a":
            for address in (attributes.get("src"), attributes.get("href")):
                assert address is None or address.startswith(("./static/", "data:image/")), address
    known = ("http://www.w3.org/", "http://www.apache.org/licenses/", "https://github.com/ecomfe/zrender")
    for address in re.findall(r"https?://[^\s\"')]+", page):
        assert address.startswith(known), address
    assert not re.search(r"@import|url\(", (web.ANALYTICS / STYLE).read_text())


def test_the_live_page_has_no_script_of_its_own() -> None:
    page = Page(web.live_html())
    assert [attributes["src"] for tag, attributes in page.tags if tag == "script"] == [f"./static/{SCRIPT}"]
    assert all(not text.strip() for _, text in page.scripts)
    assert not any(tag == "style" for tag, _ in page.tags)
    policies = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policies == [LIVE_POLICY]
    assert "unsafe" not in LIVE_POLICY.partition("script-src")[2].partition(";")[0]


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


@needs_build
def test_the_scripts_read_keys_that_exist(tmp_path: Path) -> None:
    """In our scripts snake_case means a key of the page files, or one of its values."""
    data = Page(report(tmp_path)).data()
    lag = {f"{unit}_{each}" for unit in ("lag_us", "confirm_us") for each in ("p50", "p95", "p99", "max")}
    known = keys_of(data) | lag | {"in_sync", "caught_up", "clock_sample", "consumer_lag", "offset_ms"}
    known |= {name for kind in (LiveFleet, LiveFleetGroup, ConsumerSeries) for name in kind.__struct_fields__}
    known |= {"lag_messages_max", "lag_ms_max", "last_ack_offset", "catching_up"}
    for path in OWN_SCRIPTS:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        used = set(re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b", text))
        assert used <= known | {"ha_sample", "role_change", "controller_event", "send_gap"}, (
            f"{path.name} reads {sorted(used - known)}"
        )
    wanted = keys_of(data["groups"]["KeelCluster/broker-a"]["group"]) - set("123")
    script = "".join(path.read_text() for path in OWN_SCRIPTS)
    unread = {key for key in wanted if not re.search(rf"\b{key}\b", script)}
    times = {"fault_ts", "last_heartbeat_ts", "detected_ts", "ready_ts"}  # the parts are what is drawn
    assert unread <= times | {"rows", "out_of_sync_ms"}, "written, and drawn nowhere"


def test_vendored_files_are_what_was_published() -> None:
    check = [sys.executable, str(ROOT / "tools" / "vendor.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    notice = (ROOT / "NOTICE").read_text()
    for path in VENDOR.iterdir():
        assert f"keelmq/web/vendor/{path.name}" in notice
