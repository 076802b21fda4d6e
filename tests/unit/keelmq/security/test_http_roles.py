"""Every route of every program says who may ask for it."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fastapi
import pytest
from fastapi.routing import APIRoute

from broker.admin import http_app as broker_app
from broker.config.broker_config import BrokerConfig
from broker.config.run_time_keys import AT_RUN_TIME
from keelmq.remoting.config_store import Settings
from keelmq.remoting.operation import OperationTable, Role
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.remoting.servers.http_call import CODE, OPEN, READING, ROLE, is_probe, sessions_of
from keelmq.remoting.servers.metrics import Scrape, Table
from keelmq.security.core.rules import role_of
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.plugin import ControllerPlugin
from tests.support.controller_fakes import config as controller_config


def namesrv(directory: Path, *, route_service: bool = True, controller: bool = True) -> fastapi.FastAPI:
    settings = controller_config(controllerStorePath=directory, telemetryEnable=False)
    plugins = [PluginChoice(ControllerPlugin, (settings,))] if controller else []
    made = NamesrvConfig(listen_port=0, http_port=-1, kv_config_path=directory / "kv.json")
    return Namesrv(made, plugins, route_service=route_service).http_app()


async def nothing() -> None:
    """There is nothing to prepare for a scrape."""


async def no_scrapes() -> list[Scrape]:
    return [Scrape(Table("", (), ()), ())]


def broker(_: Path) -> fastapi.FastAPI:
    return broker_app.make_app(
        table=OperationTable(),
        prepare=nothing,
        more_labels={},
        health=lambda: {"ready": True, "reasons": []},
        scrapes=no_scrapes,
        ha_status=lambda: None,
        settings=Settings(
            program="mqbroker",
            current=BrokerConfig,
            at_run_time=AT_RUN_TIME,
            sources=dict,
            table=OperationTable(),
            update=UPDATE_BROKER_CONFIG,
        ),
    )


APPS: dict[str, Callable[[Path], fastapi.FastAPI]] = {
    "namesrv": lambda directory: namesrv(directory, controller=False),
    "namesrv with a controller": namesrv,
    "controller": lambda directory: namesrv(directory, route_service=False),
    "broker": broker,
}


def walked(routes: Iterable[Any]) -> Iterator[Any]:
    """All routes; newer releases of FastAPI keep an included router as one of them."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is None:
            yield route
        else:
            yield from walked(router.routes)


@pytest.mark.parametrize("name", APPS)
def test_every_route_declares_its_role(name: str, tmp_path: Path) -> None:
    app = APPS[name](tmp_path)
    routes, sessions = list(walked(app.routes)), sessions_of(app)
    assert len(routes) >= 9
    for route in routes:
        assert isinstance(route, APIRoute), f"{route}: the check of roles does not see it"
        declared = (route.openapi_extra or {}).get(ROLE)
        assert declared == OPEN or declared.upper() in Role.__members__, route.path
        has_log_in = sessions is not None and sessions.has(route.path)
        is_page = sessions is not None and sessions.is_open(route.path)
        assert (declared == OPEN) == (is_probe(route.path) or is_page), route.path
        code = (route.openapi_extra or {}).get(CODE)
        if code is not None:
            assert declared == role_of(code).name.lower(), route.path
        elif not set(route.methods) <= set(READING) and not has_log_in:
            assert declared == "administer", route.path
    assert any(CODE in (route.openapi_extra or {}) for route in routes)


def test_the_walk_finds_what_is_in_included_routers() -> None:
    app, inner, outer = fastapi.FastAPI(openapi_url=None), fastapi.APIRouter(), fastapi.APIRouter()
    inner.add_api_route("/a", lambda: None)
    outer.include_router(inner)
    app.include_router(outer)
    paths = {getattr(route, "path", "") for route in walked(app.routes)}
    assert "/a" in paths
