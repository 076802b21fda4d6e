"""The analytics page of the name server: its files, its headers, and the data behind it."""

import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fastapi
import httpx
import msgspec
import pytest

from keelmq import web
from keelmq.web import live_files
from keelmq.web.live_files import LiveFleet
from keelmq.web.page_files import CURRENT, INDEX, PAGES, Index, IndexGroup, Series, packed, series_file
from namesrv.http.answers import SECURITY_HEADERS
from namesrv.http.dashboard import dashboard_router
from namesrv.http.pages_view import pages_router
from tests.support.http_parts import app_client
from tests.support.page_parts import GENERATION, example, with_groups, write_example, write_group, write_index

FLEET = "/v1/analytics/fleet"
GROUP = "/v1/analytics/groups/KeelCluster/broker-a"
DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
START = 20_000 * DAY_MS


def client(output_dir: Path | None) -> httpx.AsyncClient:
    app = fastapi.FastAPI()
    app.include_router(dashboard_router())
    app.include_router(pages_router(output_dir))
    return app_client(app)


def is_guarded(answer: httpx.Response) -> bool:
    return all(answer.headers.get(name) == content for name, content in SECURITY_HEADERS.items())


needs_build = pytest.mark.skipif(not web.is_built(), reason=web.NOT_BUILT)


@needs_build
@pytest.mark.parametrize("path", ["/", "/dashboard"])
async def test_the_page(path: str) -> None:
    async with client(None) as http:
        answer = await http.get(path)
        assert answer.status_code == 200 and answer.text == web.live_html()
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert is_guarded(answer)
        again = await http.get(path, headers={"if-none-match": f'"x", W/{answer.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert is_guarded(again)


@needs_build
async def test_a_console_is_linked() -> None:
    app = fastapi.FastAPI()
    app.include_router(dashboard_router(has_console=True))
    async with app_client(app) as http:
        assert 'data-console="./console/"' in (await http.get("/dashboard")).text
        assert (await http.get("/")).headers["location"] == "console/"


@needs_build
async def test_everything_that_the_page_names_is_served() -> None:
    names = [path.relative_to(web.ANALYTICS).as_posix() for path in web.ANALYTICS.rglob("*")]
    assert any(name.endswith(".js") for name in names) and any(name.endswith(".css") for name in names)
    page = web.live_html()
    async with client(None) as http:
        for name in names:
            answer = await http.get(f"/static/{name}")
            assert answer.status_code == 200 and is_guarded(answer), name
            kind = {".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}[Path(name).suffix]
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8", name
            assert answer.headers["cache-control"] == "no-cache"
            again = await http.get(f"/static/{name}", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"") and is_guarded(again), name
        for part in page.split("./static/")[1:]:
            assert part.partition('"')[0] in names


@pytest.mark.parametrize(
    "path",
    [
        "/static/../__init__.py",
        "/static/%2e%2e/__init__.py",
        "/static/..%2f__init__.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/",
        "/static/../console/index.html",
        "/static/%00",
        "/static/" + "x" * 300,
        "/static/nothing.js",
    ],
)
async def test_no_other_file_is_served(path: str) -> None:
    async with client(None) as http:
        answer = await http.get(path)
    assert answer.status_code == 404
    assert "belongs to the pages" in answer.text or answer.json()["detail"] == "Not Found"


@needs_build
async def test_scripts_are_compressed_for_those_who_take_it() -> None:
    async with client(None) as http:
        plain = await http.get("/static/analytics.js", headers={"accept-encoding": "identity"})
        small = await http.get("/static/analytics.js", headers={"accept-encoding": "br, gzip"})
        refused = await http.get("/static/analytics.js", headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers and "content-encoding" not in refused.headers
    assert small.headers["content-encoding"] == "gzip" and small.headers["vary"] == "Accept-Encoding"
    assert small.content == plain.content == refused.content
    assert int(small.headers["content-length"]) * 2 < int(plain.headers["content-length"])


async def test_the_fleet_and_its_next_generation(tmp_path: Path) -> None:
    write_example(tmp_path)
    async with client(tmp_path) as http:
        answer = await http.get(FLEET)
        assert answer.status_code == 200 and is_guarded(answer)
        assert answer.headers["content-encoding"] == "gzip" and answer.headers["cache-control"] == "no-store"
        assert [each["broker_name"] for each in answer.json()["groups"]] == ["broker-a"]
        plain = await http.get(FLEET, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers and plain.json() == answer.json()
        known = {"if-none-match": answer.headers["etag"]}
        assert (await http.get(FLEET, headers=known)).status_code == 304
        index = msgspec.convert(answer.json(), Index)
        write_index(tmp_path, index, generation=GENERATION + 1)
        changed = await http.get(FLEET, headers=known)
        assert changed.status_code == 200 and changed.headers["etag"] != answer.headers["etag"]


async def test_a_group_with_its_whole_history(tmp_path: Path) -> None:
    write_example(tmp_path)
    (group,) = example()["groups"]
    async with client(tmp_path) as http:
        answer = await http.get(GROUP)
        assert answer.status_code == 200 and is_guarded(answer)
        found = answer.json()
        assert found["group"]["failovers"] == group["failovers"]
        assert found["series"]["lag"]["ms_max"] == group["lag"]["ms_max"]
        known = {"if-none-match": answer.headers["etag"]}
        assert (await http.get(GROUP, headers=known)).status_code == 304
        assert (await http.get(f"{GROUP}?from=1", headers=known)).status_code == 200


@pytest.mark.parametrize(
    ("query", "start", "count"),
    [
        ("from=1795257640000&to=1795257643000", 1_795_257_640_000, 3),
        ("from=1795257640001&to=1795257642001", 1_795_257_640_000, 3),
        ("from=2026-11-21T10:40:40Z&to=2026-11-21T10:40:43", 1_795_257_640_000, 3),
        ("from=2026-11-21T11:40:40%2B01:00&to=1795257643000", 1_795_257_640_000, 3),
        ("from=2026-11-21T11:40:40+01:00&to=1795257643000", 1_795_257_640_000, 3),
        ("from=0", 1_795_257_636_000, 31),
        ("to=99999999999999", 1_795_257_636_000, 31),
        ("step=60000", 1_795_257_636_000, 31),
    ],
)
async def test_a_part_of_the_time(tmp_path: Path, query: str, start: int, count: int) -> None:
    async with client(write_example(tmp_path)) as http:
        answer = await http.get(f"{GROUP}?{query}")
    assert answer.status_code == 200, answer.text
    series = answer.json()["series"]
    assert series["start_ts"] == start and series["count"] == count
    assert {len(each) for each in series["lag"].values()} == {count}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("from=yesterday", "from='yesterday' is not a time: give ms since 1970"),
        ("to=2026-13-01", "to='2026-13-01' is not a time"),
        ("from=\u0661", "is not a time"),
        ("from=1795257643000&to=1795257640000", "must be before to"),
        ("from=99999999999999&to=999999999999990", "there is data from 1795257636000 to 1795257666999 only"),
        ("step=1h", "step='1h' is not a width: give ms"),
        ("step=-1", "is not a width"),
    ],
)
async def test_a_time_that_cannot_be_served_is_explained(tmp_path: Path, query: str, says: str) -> None:
    async with client(write_example(tmp_path)) as http:
        answer = await http.get(f"{GROUP}?{query}")
    assert answer.status_code == 400 and is_guarded(answer)
    assert says in answer.json()["detail"]


def long_history(out: Path, days: int) -> Path:
    """Minutes, hours and days of one group; each window's number is its own."""
    files = {}
    for step, name in ((MINUTE_MS, "minute"), (HOUR_MS, "hour"), (DAY_MS, "day")):
        for day in range(days):
            file = series_file(name, START + day * DAY_MS)
            count = DAY_MS // step
            mine = files.setdefault(
                file,
                Series(
                    resolution=name, start_ts=START + day * DAY_MS, step_ms=step, count=0, lag={"ms_max": []}
                ),
            )
            mine.lag["ms_max"] += [(START + day * DAY_MS) // step + i for i in range(count)]
            mine.count += count
    write_group(out, {"cluster_name": "c", "broker_name": "b"}, files)
    index = Index(
        generated_ts=1,
        from_ts=START,
        to_ts=START + days * DAY_MS - 1,
        start_ts=START,
        step_ms=HOUR_MS,
        columns=24,
        resolutions=["minute", "hour", "day"],
        groups=[IndexGroup(cluster_name="c", broker_name="b")],
    )
    write_index(out, index)
    return out


@pytest.mark.parametrize(
    ("query", "resolution", "count"),
    [
        ("", "minute", 1_440),
        (f"from={START}", "day", 100),
        (f"from={START}&step={HOUR_MS}", "day", 100),
        (f"from={START + 10 * HOUR_MS}&to={START + 40 * HOUR_MS}", "minute", 1_800),
        (f"from={START + 10 * HOUR_MS}&to={START + 40 * HOUR_MS}&step=60001", "hour", 30),
        (f"from={START + 10 * HOUR_MS}&to={START + 50 * HOUR_MS}", "hour", 40),
        (f"from={START}&step={DAY_MS}", "day", 100),
    ],
)
async def test_the_server_picks_the_finest_windows_that_fit(
    tmp_path: Path, query: str, resolution: str, count: int
) -> None:
    async with client(long_history(tmp_path, 100)) as http:
        answer = await http.get(f"/v1/analytics/groups/c/b?{query}")
    series = answer.json()["series"]
    assert (series["resolution"], series["count"]) == (resolution, count)
    first = series["start_ts"] // series["step_ms"]
    assert series["lag"]["ms_max"] == list(range(first, first + count)), "windows of several files, in order"


NAMES = [
    ("..", ".."), ("a/b", "c"), ("a", "b/c"), ("a", "B"), ("%2e", "~"), ("", "x"), ("C:\\", "nul\0"),
    ("\u2028\U0001f600", "x" * 300), ("c", "x" * 299 + "y"),
]  # fmt: skip


async def test_groups_of_any_name_have_their_own_files(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", with_groups(NAMES))
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert len(list((out / PAGES).rglob("group.json.gz"))) == len(NAMES)
    async with client(out) as http:
        for cluster, broker in NAMES:
            if not cluster or cluster == "..":
                continue  # no client sends an empty or a dotted segment
            answer = await http.get(
                f"/v1/analytics/groups/{quote(cluster, safe='')}/{quote(broker, safe='')}"
            )
            assert answer.status_code == 200, (cluster, broker, answer.text)
            group = answer.json()["group"]
            assert (group["cluster_name"], group["broker_name"]) == (cluster, broker)


@pytest.mark.parametrize(
    "path",
    [
        "no/such",
        "KeelCluster/broker-a%2F..",
        "..%2F..%2Fetc/passwd",
        "KeelCluster/broker-A",
        "a/b/c",
        "%FF/x",
    ],
)
async def test_a_group_that_is_not_in_the_index(tmp_path: Path, path: str) -> None:
    async with client(write_example(tmp_path)) as http:
        answer = await http.get(f"/v1/analytics/groups/{path}")
    assert answer.status_code == 404 and is_guarded(answer)
    assert "/v1/analytics/fleet lists all of them" in answer.json()["detail"]


async def test_the_fleet_with_its_last_hour(tmp_path: Path) -> None:
    out = write_example(tmp_path)
    async with client(out) as http:
        before = await http.get(FLEET)
        fleet = LiveFleet(computed_ts=9, data_to_ts=8, every_ms=5_000, start_ts=0)
        path = out / live_files.FLEET
        path.parent.mkdir()
        path.write_bytes(packed(msgspec.json.encode(fleet)))
        etag = {"If-None-Match": before.headers["etag"]}
        after = await http.get(FLEET, headers=etag)
        again = await http.get(FLEET, headers={"If-None-Match": after.headers["etag"]})
        path.write_bytes(b"{")
        damaged = await http.get(FLEET)
    assert after.status_code == 200 and again.status_code == 304
    assert after.json() == before.json() | {"live": msgspec.to_builtins(fleet)}
    assert damaged.status_code == 500 and "fleet.json.gz" in damaged.json()["detail"]


async def test_no_pages_names_the_command(tmp_path: Path) -> None:
    for path in (FLEET, GROUP):
        async with client(tmp_path) as http:
            answer = await http.get(path)
        assert answer.status_code == 404 and is_guarded(answer)
        assert f"run `keelmq analytics run --input DIR --output {tmp_path}`" in answer.json()["detail"]
        async with client(None) as http:
            answer = await http.get(path)
        assert answer.status_code == 404
        assert answer.json()["detail"].startswith("analyticsOutputDir is not set: run `keelmq analytics run")


def damage(what: str) -> Any:
    def changed(out: Path) -> None:
        index = out / PAGES / str(GENERATION) / INDEX
        match what:
            case "no index":
                index.unlink()
            case "no gzip":
                index.write_bytes(b"{}")
            case "half":
                index.write_bytes(index.read_bytes()[:-20])
            case "no index in it":
                index.write_bytes(gzip.compress(b"[]"))
            case "version":
                (out / CURRENT).write_bytes(json.dumps({"v": 2, "generation": GENERATION}).encode())
            case "current":
                (out / CURRENT).write_bytes(b"{")
            case "folder":
                (out / CURRENT).unlink()
                (out / CURRENT).mkdir()

    return changed


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no index", "cannot read"),
        ("no gzip", "not a gzip file"),
        ("half", "not a gzip file"),
        ("no index in it", "is damaged"),
        ("version", "has version 2, this release reads version 1"),
        ("current", "is damaged"),
        ("folder", "cannot read"),
    ],
)
async def test_damaged_files_are_explained(tmp_path: Path, what: str, says: str) -> None:
    write_example(tmp_path)
    damage(what)(tmp_path)
    async with client(tmp_path) as http:
        answer = await http.get(FLEET)
    assert answer.status_code == 500 and is_guarded(answer)
    assert says in answer.json()["detail"]
