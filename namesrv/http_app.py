"""The HTTP door of mqnamesrv: its operations, the plugins' routers, /livez and /readyz.

Imported late: FastAPI costs more start-up time than everything else together.
"""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI, Response

from remoting.doors.http import http_router
from remoting.operation import OperationTable


def make_app(
    table: OperationTable,
    routers: Sequence[APIRouter | OperationTable],
    health: Callable[[], dict[str, object]],
) -> FastAPI:
    app = FastAPI(title="KeelMQ name server", docs_url="/docs", redoc_url=None)
    app.include_router(http_router(table))
    for router in routers:
        # a table, so that a plugin need not import FastAPI when there is no HTTP door
        app.include_router(http_router(router) if isinstance(router, OperationTable) else router)

    @app.get("/livez")
    async def livez() -> dict[str, bool]:
        return {"alive": True}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, object]:
        answer = health()
        if not answer["ready"]:
            response.status_code = 503
        return answer

    return app
