"""The two pages as text: no data becomes HTML, nothing is fetched from elsewhere, sizes hold."""

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keelmq import web
from keelmq.web.report import LIVE_POLICY, SCRIPTS, STYLES

ROOT = Path(__file__).parents[4]
EXAMPLE = (ROOT / "tests" / "fixtures" / "dashboard" / "example.json").read_bytes()
HOSTILE = '</script><b onload="x()">&amp;\u2028<!--<script>'
REPORT_BYTES_MAX = 2_000_000
OWN_SCRIPTS = [web.STATIC / name for name in SCRIPTS if "vendor/" not in name]


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


def example() -> Any:
    return json.loads(EXAMPLE)


def dumped(data: Any) -> bytes:
    return json.dumps(data).encode()


def big(points: int) -> bytes:
    """One group with every series as long as it may be."""
    data = example()
    group = data["groups"][0]
    for series in (group["lag"], *group["replica_lag"]):
        for key, values in series.items():
            if isinstance(values, list):
                series[key] = [values[0] + i for i in range(points)] if key == "ts" else [123_456] * points
    group["changes"] = (group["changes"] * points)[:1000]
    return dumped(data)


def test_the_report_carries_its_data() -> None:
    assert Page(web.report_html(EXAMPLE, title="t")).data() == example()


def test_strings_cannot_leave_their_block() -> None:
    data = example()
    group = data["groups"][0]
    group["broker_name"] = group["cluster_name"] = HOSTILE
    group["failovers"][0].update(reason=HOSTILE, killed_program=HOSTILE)
    data["inputs"] = [HOSTILE]
    page = Page(web.report_html(dumped(data), title=HOSTILE))
    plain = Page(web.report_html(EXAMPLE, title="t"))
    assert page.data() == data
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [text for _, text in page.scripts[1:]] == [text for _, text in plain.scripts[1:]]


def test_no_script_of_ours_makes_html_of_strings() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    for path in OWN_SCRIPTS:
        assert not sinks.search(path.read_text()), path
    for name in SCRIPTS:
        text = (web.STATIC / name).read_text()
        assert "</script" not in text.lower() and "<!--" not in text, f"{name} would end its own block"
    for name in STYLES:
        assert "</style" not in (web.STATIC / name).read_text().lower()


def test_the_report_is_small() -> None:
    assert len(web.report_html(EXAMPLE, title="t").encode()) < REPORT_BYTES_MAX
    assert len(web.report_html(big(2_000), title="t").encode()) < REPORT_BYTES_MAX


@pytest.mark.parametrize(
    "page", [web.live_html(), web.report_html(EXAMPLE, title="t")], ids=["live", "report"]
)
def test_nothing_comes_from_elsewhere(page: str) -> None:
    for tag, attributes in Page(page).tags:
        assert not any(name.startswith("on") for name in attributes), f"inline handler in <{tag}>"
        if tag != "a":
            for address in (attributes.get("src"), attributes.get("href")):
                assert address is None or address.startswith(("./static/", "data:image/")), address
    known = ("http://www.w3.org/", "http://www.apache.org/licenses/", "https://github.com/ecomfe/zrender")
    for address in re.findall(r"https?://[^\s\"')]+", page):
        assert address.startswith(known), address
    for name in STYLES:
        assert not re.search(r"@import|url\(", (web.STATIC / name).read_text())


def test_the_live_page_has_no_script_of_its_own() -> None:
    page = Page(web.live_html())
    assert [attributes["src"] for tag, attributes in page.tags if tag == "script"] == [
        f"./static/{name}" for name in SCRIPTS
    ]
    assert all(not text.strip() for _, text in page.scripts)
    assert not any(tag == "style" for tag, _ in page.tags)
    policies = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policies == [LIVE_POLICY]
    assert "unsafe" not in LIVE_POLICY.partition("script-src")[2].partition(";")[0]


def test_every_named_file_is_there() -> None:
    for name in (*SCRIPTS, *STYLES):
        assert (web.STATIC / name).stat().st_size > 1_000


@pytest.mark.parametrize(
    ("dashboard", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"v": 1, "groups": [NaN]}', "NaN"),
        (b"[]", "groups"),
        (b'{"v": 1}', "groups"),
        (b'{"v": 1, "groups": {}}', "groups"),
        (b'{"v": 2, "groups": []}', "version 2"),
        (b'{"groups": []}', "version None"),
    ],
)
def test_bad_input_is_explained(dashboard: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        web.report_html(dashboard, title="t")
    assert "keelmq analytics run" in str(caught.value)


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_the_scripts_read_keys_that_exist() -> None:
    """In our scripts snake_case means a key of dashboard.json, or one of its values."""
    known = keys_of(example()) | {"in_sync", "caught_up"}
    for path in OWN_SCRIPTS:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        used = set(re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b", text))
        assert used <= known, f"{path.name} reads {sorted(used - known)}"
    wanted = keys_of(example()["groups"]) - set("123")
    script = "".join(path.read_text() for path in OWN_SCRIPTS)
    unread = {key for key in wanted if not re.search(rf"\b{key}\b", script)}
    times = {"fault_ts", "last_heartbeat_ts", "detected_ts", "ready_ts"}  # the parts are what is drawn
    assert unread <= times, "written, and drawn nowhere"


def test_vendored_files_are_what_was_published() -> None:
    check = [sys.executable, str(ROOT / "tools" / "vendor.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    notice = (ROOT / "NOTICE").read_text()
    for path in (web.STATIC / "vendor").iterdir():
        assert f"keelmq/web/static/vendor/{path.name}" in notice
