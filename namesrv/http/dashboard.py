"""The analytics page and its scripts; pages_view.py serves its data.

The page loads nothing from other servers, and its headers forbid it. Every response has an ETag. Imported
only when HTTP is enabled: it needs FastAPI.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from keelmq import web
from keelmq.remoting.operation import Role
from keelmq.remoting.servers.http_call import needs
from keelmq.web.page_files import packed
from namesrv.http.answers import REVALIDATE, accepts_gzip, is_known, refusal, secured

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
ANY_TYPE = "application/octet-stream"
PACKED = (".css", ".html", ".js", ".json", ".svg", ".txt")
FILES_PACKED = 32


def dashboard_router(*, has_console: bool = False) -> APIRouter:
    """Returns the router. FastAPI runs the plain functions in threads. has_console: / leads to it."""
    router = APIRouter(tags=["analytics"])

    reading = needs(Role.READ)

    if has_console:

        @router.get("/", include_in_schema=False, openapi_extra=needs(None))
        def root() -> Response:
            return RedirectResponse("console/", 307)

    @router.get("/dashboard", summary="the analytics page", response_class=Response, openapi_extra=reading)
    def page(request: Request) -> Response:
        return _answer(request, web.live_html().encode(), ".html")

    if not has_console:
        router.add_api_route("/", page, include_in_schema=False, openapi_extra=reading)

    @router.get("/static/{name:path}", include_in_schema=False, openapi_extra=reading)
    def static(name: str, request: Request) -> Response:
        """Serves a file of the package by its exact name, which is never used as a path."""
        found = dict(_files(web.STATIC)).get(name)
        if found is None:
            return refusal(404, f"no file {name!r} belongs to the pages")
        return _answer(request, found.read_bytes(), Path(name).suffix)

    return router


def _answer(request: Request, content: bytes, suffix: str) -> Response:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**REVALIDATE, "ETag": etag, "Vary": "Accept-Encoding"}
    if is_known(request, etag):
        return Response(status_code=304, headers=secured(headers))
    if suffix in PACKED and accepts_gzip(request):
        content = _packed(content)
        headers["Content-Encoding"] = "gzip"
    headers["Content-Type"] = CONTENT_TYPES.get(suffix, ANY_TYPE)
    return Response(content, headers=secured(headers))


@lru_cache(FILES_PACKED)
def _packed(content: bytes) -> bytes:
    return packed(content, level=9)


def _files(directory: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ("css/page.css", Traversable) of every file in a package's directory."""
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif not entry.name.startswith("_"):
            yield prefix + entry.name, entry
