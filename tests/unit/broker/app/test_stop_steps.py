"""A stop goes on behind a step that fails: the store is closed, ports are freed, tasks end, and the exit
code tells it."""

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import broker.app.program
import namesrv.program
from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.runtime import program
from keelmq.runtime.stop_steps import StopError, StopSteps, stop_after
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins import load_plugin
from tests.support.ports import free_ports


class Fault(Exception):
    """The step that these tests break."""


async def test_every_step_runs_in_order_and_the_error_names_those_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []

    def step(name: str, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            ran.append(name)
            if error is not None:
                raise error

        return run

    steps = StopSteps("test")
    steps.add("a", step("a"))
    steps.add("b", step("b", Fault("broken b")))
    steps.add("c", lambda: ran.append("c"))
    steps.add("d", step("d", StopError("inner: could not stop x")))
    steps.add("e", step("e"))
    with pytest.raises(StopError, match="could not stop b, d; the log has the reasons"):
        await steps.run()
    assert ran == ["a", "b", "c", "d", "e"]
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info is not None for record in logged] == [True, False], "one traceback for each fault"
    assert "test: b failed" in logged[0].getMessage() and "broken b" in caplog.text


async def test_a_cancelled_stop_does_the_steps_that_are_left() -> None:
    ran: list[str] = []
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    steps = StopSteps("test")
    steps.add("wait", wait)
    steps.add("after", lambda: ran.append("after"))
    stopping = asyncio.create_task(steps.run())
    await begun.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert ran == ["after"] and steps.failed == ["wait"]


async def test_an_error_of_the_block_is_not_hidden() -> None:
    async def stop() -> None:
        raise StopError("test")

    await stop_after(stop, Fault())
    with pytest.raises(StopError):
        await stop_after(stop, None)


# -- the broker ------------------------------------------------------------------------------------------


def broker_config(tmp_path: Path, **more: object) -> BrokerConfig:
    settings: dict[str, object] = {
        "broker_name": "b",
        "bind_address": "127.0.0.1",
        "broker_ip1": "127.0.0.1",
        "listen_port": 0,
        "http_port": 0,
        "store_path_root_dir": tmp_path / "store",
        "mapped_file_size_commit_log": 65_536,
        "mapped_file_size_consume_queue": 2_000,
        "flush_disk_type": "SYNC_FLUSH",
        "enable_controller_mode": True,
        "controller_addr": "127.0.0.1:1",
        "broker_id": -1,
        **more,
    }
    return BrokerConfig.model_validate(settings)


ALONE: dict[str, object] = {"enable_controller_mode": False, "controller_addr": "", "broker_id": 0}


def broken(*_: Any, **__: Any) -> None:
    raise Fault("broken")


def break_step(patch: pytest.MonkeyPatch, target: str) -> None:
    """It raises; one that owns tasks itself raises after it has ended them: else nobody could."""
    if target not in (HTTP, TASK_SET):
        patch.setattr(target, broken)
        return
    owner_name, _, name = target.rpartition(".")
    module, _, owner = owner_name.rpartition(".")
    original = getattr(getattr(sys.modules[module], owner), name)

    async def broken_at_its_end(self: Any) -> None:
        await original(self)
        raise Fault("broken")

    patch.setattr(target, broken_at_its_end)


HTTP, TASK_SET = "keelmq.remoting.servers.http_late.LateHttp.close", "keelmq.runtime.tasks.TaskSet.stop"
STEPS = {
    "the replies that are owed": "broker.app.broker.Broker._drain",
    "the registration": "broker.naming.route_registration.RouteRegistration.unregister",
    "the HTTP port": HTTP,
    "listenPort": "keelmq.remoting.dispatch.Dispatcher.close",
    "metadata": "broker.metadata.service.Metadata.close",
    "telemetry": "broker.admin.telemetry.BrokerTelemetry.close",
}
"""What a broker does at its end, and what is broken of it. None of them touches the log."""

WRITING_STEPS = {
    "background tasks": TASK_SET,
    "replication": "broker.ha.catch_up.CatchUpThreads.close",
    "group commit": "broker.store.log.group_commit.GroupCommit.close",
}
"""After one of these fails something may still write: the store is left as a crash leaves it."""


def is_free(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen()
        except OSError:
            return False
    return True


@pytest.mark.parametrize(("name", "target"), [*STEPS.items(), *WRITING_STEPS.items()])
async def test_a_broker_stops_though_a_step_fails(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = name == "the registration"  # only who has a role takes it back
    made = Broker(broker_config(tmp_path, **(ALONE if alone else {})))
    await made.__aenter__()
    assert made.http_address is not None
    addresses = [made.http_address]
    for address in filter(None, (made.address, made.status.ha_address)):
        host, _, port = address.rpartition(":")
        addresses.append((host, int(port)))
    with monkeypatch.context() as patch:
        break_step(patch, target)
        with pytest.raises(StopError) as caught:
            await made.__aexit__(None, None, None)
    assert name in str(caught.value)
    assert all(map(is_free, addresses)), "a port is still open"
    assert (tmp_path / "store" / "abort").exists() == (name in WRITING_STEPS)
    if name == "group commit":
        assert made.commit is not None
        await made.commit.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks are left: {left}"
    async with Broker(broker_config(tmp_path, **(ALONE if alone else {}))):
        pass  # the store's lock is free


async def test_a_failing_start_undoes_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the undoing fails in a step; the error of the start is what is raised."""
    made = Broker(broker_config(tmp_path))
    monkeypatch.setattr(
        "broker.app.background_services.BackgroundServices.start", lambda self, tasks: broken()
    )
    monkeypatch.setattr("broker.metadata.service.Metadata.close", broken)
    with pytest.raises(Fault):
        async with made:
            raise AssertionError("not reached")
    host, _, port = made.address.rpartition(":")
    assert is_free((host, int(port)))
    assert not (tmp_path / "store" / "abort").exists()
    assert "mqbroker: metadata failed" in caplog.text
    assert asyncio.all_tasks() == {asyncio.current_task()}


def stops_at_once(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """The program gets its SIGTERM right after its start."""
    made: list[asyncio.Event] = []

    def events(count: int = 1) -> list[asyncio.Event]:
        made[:] = [asyncio.Event() for _ in range(count)]
        return made

    def ready(_: str) -> None:
        made[0].set()

    monkeypatch.setattr(program, "stop_events", events)
    monkeypatch.setattr(program, "say_ready", ready)
    monkeypatch.setattr(program, "raise_open_files_limit", lambda: None)
    if module is namesrv.program:
        monkeypatch.setattr(namesrv.program, "stop_event", lambda: events()[0])
        monkeypatch.setattr(namesrv.program, "say_ready", ready)
        monkeypatch.setattr(namesrv.program, "raise_open_files_limit", lambda: None)


def test_the_exit_code_of_a_broker_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stops_at_once(monkeypatch, broker.app.program)
    monkeypatch.setattr("broker.metadata.service.Metadata.close", broken)
    flags = ["listenPort=0", "httpPort=-1", "bindAddress=127.0.0.1", f"storePathRootDir={tmp_path}/s"]
    argv = [part for flag in flags for part in ("--set", flag)]
    assert broker.app.program.run(argv) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "mqbroker: mqbroker: could not stop metadata; the log has the reasons"
    )
    assert not (tmp_path / "s" / "abort").exists()


# -- the name server and its controller ------------------------------------------------------------------

NAMESRV_STEPS = {
    "the HTTP port": HTTP,
    "listenPort": "keelmq.remoting.dispatch.Dispatcher.close",
    "controller": "namesrv.plugins.controller.election.reconcile_loop.Elections.stop",
    "notifications": "namesrv.min_id_notifier.MinIdNotifier.close",
}


def name_server(tmp_path: Path) -> Namesrv:
    config = NamesrvConfig.model_validate(
        {
            "listenPort": 0,
            "httpPort": 0,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": tmp_path / "kvConfig.json",
        }
    )
    plugin = load_plugin("controller")
    (model,) = plugin.config_models()
    ports = free_ports(2)
    controller = model.model_validate(
        {
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": f"n0-127.0.0.1:{ports[0]}",
            "controllerRaftPeers": f"n0-127.0.0.1:{ports[1]}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(tmp_path / "controller"),
        }
    )
    return Namesrv(config, [PluginChoice(plugin, (controller,))])


@pytest.mark.parametrize(("name", "target"), NAMESRV_STEPS.items())
async def test_a_name_server_stops_though_a_step_fails(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = name_server(tmp_path)
    await server.__aenter__()
    plugin: Any = server.plugins[0]
    assert server.http_address is not None
    addresses = [server.address, server.http_address, plugin.address]
    with monkeypatch.context() as patch:
        break_step(patch, target)
        with pytest.raises(StopError) as caught:
            await server.__aexit__(None, None, None)
    assert name in str(caught.value)
    assert all(map(is_free, addresses)), "a port is still open"
    await plugin.elections.stop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks are left: {left}"
    async with name_server(tmp_path):
        pass  # its directories are not locked any more


async def test_the_http_port_is_freed_though_its_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateHttp(lambda: None, host="127.0.0.1", port=0)
    late.bind()
    address = late.address

    class Server:
        close = staticmethod(broken)

    late._server = Server()  # type: ignore[assignment]
    with pytest.raises(StopError):
        await late.close()
    assert is_free(address)
