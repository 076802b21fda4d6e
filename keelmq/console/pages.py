"""The files of the page under /console/: what `npm run build` makes of keelmq/console/frontend.

They need no credentials: they are the same for everybody, and the page itself asks for a log-in. Files in
assets/ have a hash of their content in their names. Imported only where HTTP is served: it needs FastAPI.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from keelmq.remoting.servers.http_answers import NOT_HERE, problem
from keelmq.remoting.servers.http_call import needs
from keelmq.web.page_files import packed

PAGE: Final = "/console"
STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
HASHED: Final = "assets/"
"""Below it, a name never gets another content."""
FOREVER: Final = "public, max-age=31536000, immutable"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
ANY_TYPE: Final = "application/octet-stream"
PACKED: Final = frozenset({".css", ".html", ".js", ".json", ".svg", ".txt", ".webmanifest"})
FILES_PACKED: Final = 64
NOT_BUILT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>KeelMQ console</title></head><body>
<h1>The console's page is not built</h1>
<p>An installed package has it. A source checkout builds it, with Node.js 20 or newer:</p>
<pre>cd keelmq/console/frontend
npm ci
npm run build</pre>
<p>and then this page shows the cluster; no restart is needed. Its API works without it:
<code>/v1/console/status</code>, and <code>keelmq status</code> shows the same in a terminal.</p>
</body></html>
"""


def is_built(static: Path = STATIC) -> bool:
    """Returns whether there is a page to serve."""
    return (static / INDEX).is_file()


def pages_router(static: Path = STATIC) -> APIRouter:
    """Returns the router of the page. FastAPI runs the plain functions in threads."""
    router = APIRouter(tags=["console"])

    @router.get(PAGE, include_in_schema=False, openapi_extra=needs(None))
    def without_slash() -> Response:
        return RedirectResponse("console/", 307)

    @router.get(
        f"{PAGE}/",
        summary="the console's page",
        response_class=Response,
        responses={503: {"description": "the page is not built; it says how to build it"}},
        openapi_extra=needs(None),
    )
    def page(request: Request) -> Response:
        if not is_built(static):
            return HTMLResponse(NOT_BUILT, 503, headers={**_headers(), "Retry-After": "60"})
        return _file(request, static, INDEX)

    @router.get(
        PAGE + "/{name:path}",
        include_in_schema=False,
        responses=NOT_HERE,
        openapi_extra=needs(None),
    )
    def file(name: str, request: Request) -> Response:
        return _file(request, static, name)

    return router


def _file(request: Request, static: Path, name: str) -> Response:
    """Returns a file by its exact name. A request's text is compared with the names that there are, and never
    used as a path."""
    path = next((each for each in _names(static) if each == name), None)
    if path is None:
        detail = "no such file belongs to the console; after an update, load the page again"
        return problem(404, detail, headers=_headers())
    content, suffix = (static / path).read_bytes(), Path(path).suffix
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    caching = FOREVER if path.startswith(HASHED) else "no-cache"
    headers = {**_headers(), "Cache-Control": caching, "ETag": etag, "Vary": "Accept-Encoding"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if suffix in PACKED and "gzip" in request.headers.get("accept-encoding", ""):
        content = _packed(content)
        headers["Content-Encoding"] = "gzip"
    return Response(content, headers=headers, media_type=TYPES.get(suffix, ANY_TYPE))


def _names(static: Path) -> list[str]:
    return [each.relative_to(static).as_posix() for each in static.rglob("*") if each.is_file()]


def _headers() -> dict[str, str]:
    return {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}


@lru_cache(FILES_PACKED)
def _packed(content: bytes) -> bytes:
    return packed(content, level=9)
