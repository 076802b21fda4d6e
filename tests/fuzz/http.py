"""The HTTP fuzzer: schemathesis reads the OpenAPI of running programs, and sends what fits it, or not.

No answer may be a server error, and status code, content type and body must be as the OpenAPI says. The
programs run in this process, in a thread: mqnamesrv with a controller (over a log in memory) and mqbroker.
"""

import asyncio
import logging
import tempfile
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import schemathesis
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from keelmq.runtime.config import Config
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins import PluginContext
from namesrv.plugins.controller.plugin import ControllerPlugin
from tests.fuzz.frames import fast_directory
from tests.support.controller_fakes import FakeReplicator, config
from tests.support.ports import free_port

NOT_READY = ("/readyz", "/master", "/slave")
READINESS = 503
"""Documented, and no bug: the program says that it should get no traffic."""


def no_server_error(_context: Any, response: Any, case: Any) -> None:
    """504 is an answer: nobody knows the outcome. Here, where every log works, it must not come either."""
    if response.status_code >= 500 and not (response.status_code == READINESS and case.path in NOT_READY):
        raise AssertionError(f"status {response.status_code}: {response.text}")


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
HOST = "127.0.0.1"


class InMemory(ControllerPlugin):
    """A controller alone, whose log is a list."""

    def __init__(self, context: PluginContext, *configs: Config) -> None:
        super().__init__(context, *configs, make_replicator=FakeReplicator)


@asynccontextmanager
async def programs(directory: Path) -> AsyncIterator[dict[str, str]]:
    """Name -> base URL."""
    async with AsyncExitStack() as stack:
        controller = config(
            controllerDLegerPeers=f"n0-{HOST}:{free_port()}",
            controllerStorePath=directory / "controller",
            telemetryEnable=False,
        )
        namesrv_config = NamesrvConfig.model_validate(
            {
                "listenPort": 0,
                "bindAddress": HOST,
                "httpPort": 0,
                "kvConfigPath": directory / "kvConfig.json",
                "configStorePath": directory / "namesrv.conf",
                "notifyMinBrokerIdChanged": False,
            }
        )
        server = Namesrv(namesrv_config, [PluginChoice(InMemory, (controller,))])
        await stack.enter_async_context(server)
        broker_config = BrokerConfig.model_validate(
            {
                "listenPort": 0,
                "bindAddress": HOST,
                "httpPort": 0,
                "brokerIP1": HOST,
                "storePathRootDir": directory / "b",
            }
        )
        broker = Broker(broker_config)
        await stack.enter_async_context(broker)
        yield {"namesrv": _url(server.http_address), "broker": _url(broker.http_address)}


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """The programs in a thread with a loop of its own."""
    ready, done, found = threading.Event(), asyncio.Event(), dict[str, str]()
    loop = asyncio.new_event_loop()

    async def serve(directory: Path) -> None:
        async with programs(directory) as urls:
            found.update(urls)
            ready.set()
            await done.wait()

    def main(directory: Path) -> None:
        try:
            loop.run_until_complete(serve(directory))
        finally:
            ready.set()
            loop.close()

    with tempfile.TemporaryDirectory(prefix="fuzz-http-", dir=fast_directory()) as directory:
        thread = threading.Thread(target=main, args=(Path(directory),), name="programs")
        thread.start()
        ready.wait(30)
        try:
            assert found, "the programs did not start"
            yield found
        finally:
            if found:
                loop.call_soon_threadsafe(done.set)
            thread.join(30)


ENDLESS = ["/v1/console/events"]
"""Streams: their answers have no end."""


@dataclass
class Report:
    requests: int = 0
    operations: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def line(self) -> str:
        codes = " ".join(f"{code}:{count}" for code, count in sorted(self.statuses.items()))
        return (
            f"FUZZ http requests={self.requests} operations={self.operations} "
            f"findings={len(self.findings)} statuses={codes}"
        )


def fuzz_program(name: str, url: str, *, examples: int, seed: int, report: Report) -> None:
    """`examples` requests of each kind (fitting, not fitting) to every operation."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json").exclude(path=ENDLESS)
    for result in schema.get_all_operations():
        operation = result.ok()
        report.operations += 1
        for mode in MODES:
            try:
                _fuzz_operation(operation, mode, examples, seed, report)
            except hypothesis.errors.Unsatisfiable:
                pass  # nothing of that kind: an operation without input cannot be asked wrongly
            except BaseException as error:  # hypothesis and schemathesis raise groups
                if isinstance(error, KeyboardInterrupt):
                    raise
                report.findings.append(f"{name} {operation.label} ({mode.value}): {_told(error)}")


def _fuzz_operation(operation: Any, mode: GenerationMode, examples: int, seed: int, report: Report) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(timeout=20)
        report.requests += 1
        report.statuses[response.status_code] = report.statuses.get(response.status_code, 0) + 1
        case.validate_response(response, checks=CHECKS)

    ask()


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(_told(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


def fuzz_http(*, examples: int, seed: int, programs: Collection[str] = ("namesrv", "broker")) -> Report:
    report, level = Report(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with running() as urls:
            for name in programs:
                fuzz_program(name, urls[name], examples=examples, seed=seed, report=report)
    finally:
        logging.disable(level)
    return report


def run_http(count: int, seed: int) -> int:
    """The exit code. `count`: requests, about."""
    per_operation = max(1, count // 250)  # some 125 operations, and two modes
    report = fuzz_http(examples=per_operation, seed=seed)
    for finding in report.findings:
        print(finding, end="\n\n")
    print(report.line())
    return 1 if report.findings else 0


def _url(address: tuple[str, int] | None) -> str:
    assert address is not None
    return f"http://{address[0]}:{address[1]}"
