"""/docs works on a machine without the internet: everything that it names comes from the program itself."""

import re
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urljoin

import pytest

from broker.app.broker import Broker
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.http_parts import ask
from tests.unit.broker.app.test_stop_steps import ALONE, broker_config, name_server
from tests.unit.keelmq.web.test_web import Page

ASSETS = 4
"""Script, style, our start script, icon."""


@pytest.mark.parametrize("program", ["broker", "name server", "with controller"])
async def test_docs_and_all_it_names_are_local(program: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server: Broker | Namesrv
        if program == "broker":
            server = await stack.enter_async_context(Broker(broker_config(tmp_path, **ALONE)))
        elif program == "with controller":
            server = await stack.enter_async_context(name_server(tmp_path))
        else:
            config = {"listenPort": 0, "httpPort": 0, "bindAddress": "127.0.0.1"}
            config["kvConfigPath"] = str(tmp_path / "kvConfig.json")
            server = await stack.enter_async_context(Namesrv(NamesrvConfig.model_validate(config)))
        page = await ask(server.http_address, "/docs")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert not re.search(r"(https?:)?//[a-z]", page.text), "a foreign host"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        named = [
            address
            for tag, attributes in Page(page.text).tags
            if (address := attributes.get("src") or attributes.get("href")) is not None
        ]
        assert len(named) == ASSETS
        for address in named:
            if not address.startswith("data:"):
                asset = await ask(server.http_address, urljoin("/docs", address))
                assert asset.status_code == 200 and asset.content, address
                types = ("text/javascript", "text/css")
                assert asset.headers["content-type"].partition(";")[0] in types, address
        start = await ask(server.http_address, "/docs/start.js")
        (described,) = re.findall(r'url: "([^"]+)"', start.text)
        assert "paths" in (await ask(server.http_address, urljoin("/docs", described))).json()
        assert "validatorUrl: null" in start.text
        assert (await ask(server.http_address, "/redoc")).status_code == 404
