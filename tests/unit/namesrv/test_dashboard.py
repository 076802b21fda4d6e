"""The analytics page of the name server: its files, its headers, and the dashboard.json behind it."""

import os
import stat
from pathlib import Path

import fastapi
import httpx
import pytest

from keelmq import web
from namesrv.http import dashboard
from namesrv.http.dashboard import SECURITY_HEADERS, dashboard_router
from tests.support.http_parts import app_client

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "dashboard" / "example.json"


def client(output_dir: Path | None) -> httpx.AsyncClient:
    app = fastapi.FastAPI()
    app.include_router(dashboard_router(output_dir))
    return app_client(app)


def is_guarded(answer: httpx.Response) -> bool:
    return all(answer.headers.get(name) == content for name, content in SECURITY_HEADERS.items())


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


async def test_everything_that_the_page_names_is_served() -> None:
    root = Path(str(web.STATIC))
    found = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    names = [path.as_posix() for path in found if not any(part.startswith("_") for part in path.parts)]
    assert any(name.endswith(".js") for name in names) and any(name.endswith(".css") for name in names)
    page = web.live_html()
    async with client(None) as http:
        for name in names:
            answer = await http.get(f"/static/{name}")
            assert answer.status_code == 200 and is_guarded(answer), name
            kind = dashboard.CONTENT_TYPES[Path(name).suffix]
            assert answer.headers["content-type"] == kind, name
            assert answer.headers["cache-control"] == "no-cache" and answer.headers["etag"]
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
        "/static/vendor",
        "/static/nothing.js",
    ],
)
async def test_no_other_file_is_served(path: str) -> None:
    async with client(None) as http:
        answer = await http.get(path)
    assert answer.status_code == 404
    assert "belongs to the pages" in answer.text or answer.json() == {"detail": "Not Found"}


async def test_the_dashboard_and_its_next_version(tmp_path: Path) -> None:
    first = EXAMPLE.read_bytes()
    (tmp_path / "dashboard.json").write_bytes(first)
    async with client(tmp_path) as http:
        answer = await http.get("/v1/analytics/dashboard")
        assert answer.status_code == 200 and answer.content == first
        assert answer.headers["content-type"] == "application/json" and is_guarded(answer)
        assert answer.headers["cache-control"] == "no-store"
        known = {"if-none-match": answer.headers["etag"]}
        assert (await http.get("/v1/analytics/dashboard", headers=known)).status_code == 304
        (tmp_path / "next").write_bytes(b'{"v":1}')
        os.replace(tmp_path / "next", tmp_path / "dashboard.json")
        changed = await http.get("/v1/analytics/dashboard", headers=known)
        assert changed.status_code == 200 and changed.content == b'{"v":1}'


async def test_no_dashboard_names_the_command(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        answer = await http.get("/v1/analytics/dashboard")
    assert answer.status_code == 404 and is_guarded(answer)
    assert f"run `keelmq analytics run --input DIR --output {tmp_path}`" in answer.json()["remark"]
    async with client(None) as http:
        answer = await http.get("/v1/analytics/dashboard")
    assert answer.status_code == 404
    assert answer.json()["remark"].startswith("analyticsOutputDir is not set: run `keelmq analytics run")


async def test_a_dashboard_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "DASHBOARD_BYTES_MAX", 10)
    (tmp_path / "dashboard.json").write_bytes(b"x" * 11)
    async with client(tmp_path) as http:
        answer = await http.get("/v1/analytics/dashboard")
        assert answer.status_code == 500 and "has 11 bytes, 10 are served" in answer.json()["remark"]
        (tmp_path / "dashboard.json").write_bytes(b"x" * 10)
        assert (await http.get("/v1/analytics/dashboard")).status_code == 200


async def test_a_dashboard_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "dashboard.json").mkdir()
    assert stat.S_ISDIR((tmp_path / "dashboard.json").stat().st_mode)
    async with client(tmp_path) as http:
        answer = await http.get("/v1/analytics/dashboard")
    assert answer.status_code == 500 and "cannot read" in answer.json()["remark"]
