"""The analytics page and its files; pages_view.py serves its data.

The page loads nothing from other servers, and its headers forbid it. Every response has an ETag. Imported
only when HTTP is enabled: it needs FastAPI.
"""

import hashlib

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from keelmq import web
from keelmq.remoting.operation import Role
from keelmq.remoting.servers.http_call import needs
from keelmq.web.static_files import REVALIDATE, PageDirectory, not_built
from namesrv.http.answers import SECURITY_HEADERS, known


def dashboard_router(*, has_console: bool = False) -> APIRouter:
    """Returns the router. has_console: / leads to it, and the page has a link to it."""
    router = APIRouter(tags=["analytics"])
    files = PageDirectory(web.ANALYTICS, SECURITY_HEADERS)
    html = web.live_html("./console/" if has_console else "")
    etag = f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"'
    headers = {**SECURITY_HEADERS, "Cache-Control": REVALIDATE, "ETag": etag}

    reading = needs(Role.READ)

    if has_console:

        @router.get("/", include_in_schema=False, openapi_extra=needs(None))
        def root() -> Response:
            return RedirectResponse("console/", 307)

    @router.get("/dashboard", summary="the analytics page", response_class=Response, openapi_extra=reading)
    def page(request: Request) -> Response:
        if not web.is_built():
            return not_built(SECURITY_HEADERS)
        return known(request, headers) or HTMLResponse(html, headers=headers)

    if not has_console:
        router.add_api_route("/", page, include_in_schema=False, openapi_extra=reading)

    @router.get("/static/{name:path}", include_in_schema=False, openapi_extra=reading)
    async def static(name: str, request: Request) -> Response:
        return await files.response(name, request)

    return router
