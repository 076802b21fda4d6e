"""The analytics pages: the dashboard, its scripts, and the newest dashboard.json.

The page loads nothing from other servers, and its headers forbid it. Every response has an ETag. Files are
read in worker threads, in chunks, from one open descriptor: replacing dashboard.json does not disturb a
download. Imported only when HTTP is enabled: it needs FastAPI.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from keelmq import web
from keelmq.remoting.operation import Role
from keelmq.remoting.servers.http_call import needs
from keelmq.web.report import PAGE_POLICY

DASHBOARD = "dashboard.json"
DASHBOARD_BYTES_MAX = 32 << 20
CHUNK_BYTES = 256 << 10
SECURITY_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
}
REVALIDATE = {"Cache-Control": "no-cache"}
NOT_STORED = {"Cache-Control": "no-store"}
"""The page keeps the ETag itself."""
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


class NoDashboard(BaseModel):
    """404 or 500: why there is no dashboard, and what to do."""

    remark: str


def dashboard_router(output_dir: Path | None) -> APIRouter:
    """Returns the router. `output_dir`: analyticsOutputDir. FastAPI runs the plain functions in threads."""
    router = APIRouter(tags=["analytics"])

    reading = needs(Role.READ)

    @router.get("/", include_in_schema=False, openapi_extra=reading)
    @router.get("/dashboard", summary="the analytics page", response_class=Response, openapi_extra=reading)
    def page(request: Request) -> Response:
        return _answer(request, web.live_html().encode(), CONTENT_TYPES[".html"])

    @router.get("/static/{name:path}", include_in_schema=False, openapi_extra=reading)
    def static(name: str, request: Request) -> Response:
        """Serves a file of the package by its exact name, which is never used as a path."""
        found = dict(_files(web.STATIC)).get(name)
        if found is None:
            return _refusal(404, f"no file {name!r} belongs to the pages")
        return _answer(request, found.read_bytes(), CONTENT_TYPES.get(Path(name).suffix, ANY_TYPE))

    @router.get(
        "/v1/analytics/dashboard",
        summary="the newest dashboard.json",
        response_class=Response,
        responses={
            404: {"model": NoDashboard, "description": "There is none yet: the remark explains what to do"}
        },
        openapi_extra=reading,
    )
    def dashboard(request: Request) -> Response:
        if output_dir is None:
            return _refusal(404, f"analyticsOutputDir is not set: {how_to('OUT')}, and set it to OUT")
        try:
            file = (output_dir / DASHBOARD).open("rb")
        except FileNotFoundError:
            return _refusal(404, f"no {output_dir / DASHBOARD} yet: {how_to(str(output_dir))}")
        except OSError as error:
            return _refusal(500, f"cannot read {output_dir / DASHBOARD}: {error.strerror}")
        return _streamed(request, file)

    return router


def how_to(output: str) -> str:
    """Returns the command that writes dashboard.json to the directory `output`."""
    return f"run `keelmq analytics run --input DIR --output {output}`"


def _streamed(request: Request, file: BinaryIO) -> Response:
    status = os.fstat(file.fileno())
    etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"'
    headers = {**SECURITY_HEADERS, **NOT_STORED, "ETag": etag}
    if _is_known(request, etag) or status.st_size > DASHBOARD_BYTES_MAX:
        file.close()
        if status.st_size > DASHBOARD_BYTES_MAX:
            return _refusal(
                500,
                f"{DASHBOARD} has {status.st_size} bytes, {DASHBOARD_BYTES_MAX} are served: "
                "analyse a shorter time or a longer --window",
            )
        return Response(status_code=304, headers=headers)
    headers["Content-Length"] = str(status.st_size)
    return StreamingResponse(
        _chunks(file, status.st_size), media_type=CONTENT_TYPES[".json"], headers=headers
    )


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    with file:
        while size > 0 and (chunk := file.read(min(CHUNK_BYTES, size))):
            size -= len(chunk)
            yield chunk


def _answer(request: Request, content: bytes, content_type: str) -> Response:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**SECURITY_HEADERS, **REVALIDATE, "ETag": etag}
    if _is_known(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "Content-Type": content_type})


def _is_known(request: Request, etag: str) -> bool:
    """Returns whether If-None-Match has this ETag. Weak comparison (RFC 9110)."""
    asked = (part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(","))
    return any(part in (etag, "*") for part in asked)


def _refusal(status: int, remark: str) -> Response:
    return JSONResponse({"remark": remark}, status, headers=SECURITY_HEADERS)


def _files(directory: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ("css/page.css", Traversable) of every file in a package's directory."""
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif not entry.name.startswith("_"):
            yield prefix + entry.name, entry
