"""The files of the page under /console/, which are built from keelmq/web/frontend.

They need no credentials: they are the same for all users, and the page itself asks for a log-in. Files in
assets/ have a hash of their content in their names. Imported only where HTTP is served: it needs FastAPI.
"""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from keelmq.remoting.servers.http_answers import NOT_HERE
from keelmq.remoting.servers.http_call import needs
from keelmq.web import STATIC
from keelmq.web.static_files import PageDirectory, not_built

PAGE: Final = "/console"
INDEX: Final = "index.html"
HASHED: Final = "assets/"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def is_built(static: Path = STATIC / "console") -> bool:
    """Returns whether there is a page to serve."""
    return (static / INDEX).is_file()


def pages_router(static: Path = STATIC / "console") -> APIRouter:
    """Returns the router of the page."""
    router = APIRouter(tags=["console"])
    files = PageDirectory(static, HEADERS, forever=HASHED)

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
    async def page(request: Request) -> Response:
        return await files.response(INDEX, request) if is_built(static) else not_built(HEADERS)

    @router.get(
        PAGE + "/{name:path}",
        include_in_schema=False,
        responses=NOT_HERE,
        openapi_extra=needs(None),
    )
    async def file(name: str, request: Request) -> Response:
        return await files.response(name, request)

    return router
