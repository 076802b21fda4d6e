"""/docs of the programs: Swagger UI from the package, for machines without internet access.

FastAPI's own page loads its scripts from a CDN. This one loads nothing from other hosts, and its headers
forbid it. Imports FastAPI, so programs import it late.
"""

import html
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from keelmq.web.report import PAGE_POLICY
from keelmq.web.static_files import PageDirectory

SCRIPT: Final = "swagger-ui-5.35.0.js"
STYLE: Final = "swagger-ui-5.35.0.css"
START: Final = "start.js"
HEADERS: Final = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
}
VENDOR: Final = Path(__file__).parent / "vendor"

PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="./docs/{style}">
</head>
<body>
<div id="swagger-ui"></div>
<script src="./docs/{script}"></script>
<script src="./docs/{start}"></script>
</body>
</html>
"""
START_SCRIPT: Final = """SwaggerUIBundle({
  url: "./openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""


def add_docs(app: FastAPI, *, openapi_extra: dict[str, Any] | None = None) -> None:
    """Adds GET /docs and the files of its page. The app must be made with docs_url=None and
    redoc_url=None. openapi_extra: of these routes, says what role they need."""
    files = PageDirectory(VENDOR, HEADERS, forever="")  # their names include their version
    page = PAGE.format(title=html.escape(app.title), style=STYLE, script=SCRIPT, start=START)

    @app.get("/docs", include_in_schema=False, openapi_extra=openapi_extra)
    def docs() -> Response:
        return HTMLResponse(page, headers=HEADERS)

    @app.get(f"/docs/{START}", include_in_schema=False, openapi_extra=openapi_extra)
    def start() -> Response:
        return Response(START_SCRIPT, media_type="text/javascript", headers=HEADERS)

    @app.get("/docs/{name}", include_in_schema=False, openapi_extra=openapi_extra)
    async def file(name: str, request: Request) -> Response:
        return await files.response(name, request)
