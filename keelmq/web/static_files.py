"""The files of the pages: Starlette's StaticFiles, with our headers, and gzip for those who take it.

Nothing but the files of one directory is served. Imported only where HTTP is served: it needs FastAPI.
"""

import asyncio
import hashlib
import mimetypes
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.staticfiles import NotModifiedResponse, PathLike, StaticFiles
from starlette.types import Scope

from keelmq.remoting.servers.http_answers import problem
from keelmq.web.page_files import packed

FOREVER: Final = "public, max-age=31536000, immutable"
REVALIDATE: Final = "no-cache"
PACKED: Final = frozenset({".css", ".html", ".js", ".json", ".svg", ".txt"})
FILES_PACKED: Final = 64
NOT_BUILT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>KeelMQ</title></head><body>
<h1>This page is not built</h1>
<p>An installed package has it. A source checkout builds it, with Node.js 20 or newer:</p>
<pre>cd keelmq/web/frontend
npm ci
npm run build</pre>
<p>and then this page shows the cluster; no restart is needed. The API works without it:
<code>/docs</code>, and <code>keelmq status</code> shows the cluster in a terminal.</p>
</body></html>
"""

mimetypes.add_type("text/javascript", ".js")  # whatever the files of this machine say


def not_built(headers: Mapping[str, str]) -> Response:
    """Returns the page that explains how to build the pages."""
    return HTMLResponse(NOT_BUILT, 503, headers={**headers, "Cache-Control": REVALIDATE, "Retry-After": "60"})


def accepts_gzip(request: Request) -> bool:
    """Returns whether Accept-Encoding names gzip, or all, with a weight above 0."""
    for part in request.headers.get("accept-encoding", "").split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class _Files(StaticFiles):
    """`forever`: as PageDirectory has it. Files that are validated again have an ETag of their content: the
    times in packages may be fixed, so that another content has the same time and size."""

    def __init__(self, directory: Path, forever: str | None) -> None:
        super().__init__(directory=directory, check_dir=False)
        self._root, self._forever = directory, forever

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        path = Path(full_path)  # without symbolic links and "..", which the request's text may have
        name = path.relative_to(self._root.resolve()).as_posix()
        if self._forever is not None and name.startswith(self._forever):
            headers = {"Cache-Control": FOREVER}
        else:
            etag = _content_etag(
                str(path), stat_result.st_mtime_ns, stat_result.st_ctime_ns, stat_result.st_size
            )
            headers = {"Cache-Control": REVALIDATE, "ETag": etag}
        found = FileResponse(path, status_code, headers, stat_result=stat_result)
        if self.is_not_modified(found.headers, Headers(scope=scope)):
            return NotModifiedResponse(found.headers)
        return found

    def is_not_modified(self, response_headers: Headers, request_headers: Headers) -> bool:
        """Only by the ETag, and not by the time of the file."""
        return "if-none-match" in request_headers and super().is_not_modified(
            response_headers, request_headers
        )


class PageDirectory:
    """`headers`: of every response. `forever`: the names of files below it never get another content."""

    def __init__(self, directory: Path, headers: Mapping[str, str], *, forever: str | None = None) -> None:
        self._files, self._headers = _Files(directory, forever), headers

    async def response(self, name: str, request: Request) -> Response:
        """Returns the response with a file, 304 if the client knows it, or 404."""
        try:
            found = await self._files.get_response(name, request.scope)
        except HTTPException:
            detail = f"no file {name!r} belongs to the pages; after an update, load the page again"
            return problem(404, detail, headers={**self._headers, "Cache-Control": REVALIDATE})
        if isinstance(found, FileResponse) and Path(found.path).suffix in PACKED and accepts_gzip(request):
            content = await asyncio.to_thread(_packed, str(found.path), found.headers["etag"])
            names = ("content-type", "etag", "last-modified", "cache-control")
            kept = {each: found.headers[each] for each in names}
            found = Response(content, headers={**kept, "Content-Encoding": "gzip"})
        found.headers.update({**self._headers, "Vary": "Accept-Encoding"})
        return found


@lru_cache(FILES_PACKED)
def _content_etag(path: str, *changes: int) -> str:
    """Returns the ETag of a file's content. `changes`: its times and size."""
    return f'"{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]}"'


@lru_cache(FILES_PACKED)
def _packed(path: str, etag: str) -> bytes:
    """`etag`: another one after an update of the file."""
    return packed(Path(path).read_bytes(), level=9)
