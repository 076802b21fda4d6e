"""The page's files: long caching for hashed names, a strict policy, nothing from outside of the folder."""

import os
from pathlib import Path

import pytest
from fastapi import FastAPI

from keelmq.console.pages import pages_router
from tests.support.http_parts import app_client


@pytest.fixture
def static(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("outside")
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><script src=assets/page-1a2b.js></script>")
    (folder / "assets" / "page-1a2b.js").write_text("console.log(1)")
    return folder


def app_of(static: Path) -> FastAPI:
    app = FastAPI()
    app.include_router(pages_router(static))
    return app


async def test_the_page_and_its_files(static: Path) -> None:
    async with app_client(app_of(static)) as client:
        page = await client.get("/console/")
        assert (page.status_code, page.headers["cache-control"]) == (200, "no-cache")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        script = await client.get("/console/assets/page-1a2b.js")
        assert script.text == "console.log(1)"
        assert "immutable" in script.headers["cache-control"]
        assert script.headers["content-type"].startswith("text/javascript")
        again = await client.get(
            "/console/assets/page-1a2b.js", headers={"if-none-match": script.headers["etag"]}
        )
        assert again.status_code == 304
        # Relative, so that it works behind a prefix as well.
        assert (await client.get("/console")).headers["location"] == "console/"


@pytest.mark.parametrize("name", ["../secret.txt", "..%2fsecret.txt", "assets/../../secret.txt", "nothing"])
async def test_nothing_else_is_served(static: Path, name: str) -> None:
    async with app_client(app_of(static)) as client:
        answer = await client.get(f"/console/{name}")
        assert answer.status_code == 404
        assert "outside" not in answer.text


async def test_a_page_with_the_time_and_size_of_another(static: Path) -> None:
    """Wheels and images are built with one time for all files."""
    page = static / "index.html"
    seen = []
    for version in (b"1", b"2"):
        page.write_bytes(b"<!doctype html>" + version)
        os.utime(page, (1_577_836_800, 1_577_836_800))
        async with app_client(app_of(static)) as client:
            seen.append(await client.get("/console/"))
            known = {"if-none-match": seen[0].headers["etag"]}
            again = await client.get("/console/", headers=known)
            since = {"if-modified-since": seen[0].headers["last-modified"]}
            assert (await client.get("/console/", headers=since)).status_code == 200
    assert seen[0].headers["last-modified"] == seen[1].headers["last-modified"]
    assert (again.status_code, again.text) == (200, "<!doctype html>2")


async def test_only_the_files_below_assets_are_kept_for_ever(static: Path) -> None:
    """The path of the file decides, and not the text of the request."""
    async with app_client(app_of(static)) as client:
        for name, expected in (
            ("assets/..%2Findex.html", "no-cache"),
            ("assets/..%2Fassets/page-1a2b.js", "public, max-age=31536000, immutable"),
            ("x%2F..%2Fassets/page-1a2b.js", "public, max-age=31536000, immutable"),
            ("assets/nothing.js", "no-cache"),
        ):
            for encoding in ("identity", "gzip"):
                answer = await client.get(f"/console/{name}", headers={"accept-encoding": encoding})
                assert answer.headers["cache-control"] == expected, name
                assert answer.status_code == (404 if "nothing" in name else 200)


async def test_a_page_that_is_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    async with app_client(app_of(tmp_path)) as client:
        answer = await client.get("/console/")
        assert answer.status_code == 503
        assert "npm run build" in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
