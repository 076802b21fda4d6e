"""/docs of the programs: Swagger UI from the package, for machines without internet access.

FastAPI's own page loads its scripts from a CDN. This one loads nothing from other hosts, and its headers
forbid it. Imports FastAPI, so programs import it late.
"""

import html
from typing import Any, Final

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from keelmq.web.report import PAGE_POLICY, STATIC

SCRIPT: Final = "swagger-ui-5.35.0.js"
STYLE: Final = "swagger-ui-5.35.0.css"
START: Final = "start.js"
HEADERS: Final = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
}
FOREVER: Final = {"Cache-Control": "public, max-age=31536000, immutable", **HEADERS}
"""The names of vendored files include their version."""

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
    page = PAGE.format(title=html.escape(app.title), style=STYLE, script=SCRIPT, start=START)

    @app.get("/docs", include_in_schema=False, openapi_extra=openapi_extra)
    def docs() -> Response:
        return HTMLResponse(page, headers=HEADERS)

    @app.get(f"/docs/{START}", include_in_schema=False, openapi_extra=openapi_extra)
    def start() -> Response:
        return Response(START_SCRIPT, media_type="text/javascript", headers=HEADERS)

    @app.get(f"/docs/{SCRIPT}", include_in_schema=False, openapi_extra=openapi_extra)
    def script() -> Response:
        return _vendored(SCRIPT, "text/javascript")

    @app.get(f"/docs/{STYLE}", include_in_schema=False, openapi_extra=openapi_extra)
    def style() -> Response:
        return _vendored(STYLE, "text/css")


def _vendored(name: str, media_type: str) -> Response:
    content = (STATIC / "vendor" / name).read_bytes()
    return Response(content, media_type=media_type, headers=FOREVER)
