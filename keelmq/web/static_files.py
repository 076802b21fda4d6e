"""The files of the pages: Starlette's StaticFiles, with our headers, and gzip for those who take it.

Nothing but the files of one directory is served. Imported only where HTTP is served: it needs FastAPI.
"""

import asyncio
import mimetypes
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

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


class PageDirectory:
    """`headers`: of every response. `forever`: the names of files below it never get another content."""

    def __init__(self, directory: Path, headers: Mapping[str, str], *, forever: str | None = None) -> None:
        self._files = StaticFiles(directory=directory, check_dir=False)
        self._headers, self._forever = headers, forever

    async def response(self, name: str, request: Request) -> Response:
        """Returns the response with a file, 304 if the client knows it, or 404."""
        try:
            found = await self._files.get_response(name, request.scope)
        except HTTPException:
            detail = f"no file {name!r} belongs to the pages; after an update, load the page again"
            return problem(404, detail, headers=self._headers)
        if isinstance(found, FileResponse) and Path(name).suffix in PACKED and accepts_gzip(request):
            content = await asyncio.to_thread(_packed, str(found.path), found.headers["etag"])
            kept = {each: found.headers[each] for each in ("content-type", "etag", "last-modified")}
            found = Response(content, headers={**kept, "Content-Encoding": "gzip"})
        is_forever = self._forever is not None and name.startswith(self._forever)
        found.headers.update(
            {
                **self._headers,
                "Cache-Control": FOREVER if is_forever else REVALIDATE,
                "Vary": "Accept-Encoding",
            }
        )
        return found


@lru_cache(FILES_PACKED)
def _packed(path: str, etag: str) -> bytes:
    """`etag`: another one after an update of the file."""
    return packed(Path(path).read_bytes(), level=9)
