"""The program of a worker: `python -m broker.container.workers.worker`, which only a supervisor starts.

It has the settings of every server program (event loop, open files, garbage collector), reads the same
configuration as its supervisor, and logs to the same stderr.
"""

import argparse
import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker.app.process import make_process_parts
from broker.container.config import ContainerConfig
from broker.container.host import BrokerHost, HostObserver
from broker.container.local_host import LocalHost
from broker.container.workers.messages import Begin
from broker.container.workers.server import MakeHost, WorkerServer
from keelmq.remoting.config_store import with_stored
from keelmq.runtime import program
from keelmq.runtime.bounded_exit import EXIT_S_MAX, bounded_end, exit_within
from keelmq.runtime.config import load_config
from keelmq.runtime.log_context import log_context
from keelmq.runtime.quick_start import settle_collector
from keelmq.runtime.stop_steps import StopError
from keelmq.runtime.tasks import TaskSet

logger = logging.getLogger("broker.container.workers.worker")  # __main__ is no useful name

PROGRAM: Final = "mqbrokercontainer worker"
STOP_S: Final = 150
"""How long the stop of the brokers may take if the supervisor is gone and cannot end the worker."""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments of process.spawn()."""
    parser = program.Parser(prog=PROGRAM, description="A process of mqbrokercontainer, which starts it.")
    parser.add_argument("--number", type=int, required=True, help="of this worker in its container")
    parser.add_argument("--fd", type=int, required=True, help="end of the socket pair to the supervisor")
    parser.add_argument("--log-level", default="INFO")
    program.add_log_format(parser)
    return parser


def exit_at_last() -> None:
    """Ends the process if it is still there in STOP_S, with the stacks of all threads on stderr. The stops
    and the steps after them are bounded (bounded_exit.py): this is for an event loop that hangs."""
    faulthandler.dump_traceback_later(STOP_S, exit=True)


async def serve(number: int, end: socket.socket, make_host: MakeHost) -> None:
    """Runs until the supervisor closes the worker or is gone. Raises StopError."""
    server = WorkerServer(make_host, on_stopping=exit_at_last)
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, server.signalled)
    await server.serve(end)
    logger.info("worker %d: its brokers are stopped", number)


def run(argv: list[str], make_host: MakeHost) -> int:
    """Returns the exit code."""
    # Until serve() has handlers: a signal to the group must not end a worker that the supervisor is about to
    # stop. A closed terminal never does: the supervisor gets its SIGHUP, too, unless run with nohup.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    arguments = make_parser().parse_args(argv)
    program.log_to_stderr(arguments.log_level, arguments.log_format)
    end = socket.socket(fileno=arguments.fd)
    end.set_inheritable(False)
    end.setblocking(False)
    program.raise_open_files_limit()
    program.let_the_loop_in()
    try:
        # Log lines about no broker of the worker are about the worker.
        with log_context(f"worker {arguments.number}"), bounded_end(program.runner()) as runner:
            runner.run(serve(arguments.number, end, make_host))
    except StopError as error:
        return program.refuse(PROGRAM, error)
    return 0


@asynccontextmanager
async def local_host(begin: Begin, observer: HostObserver) -> AsyncIterator[BrokerHost]:
    """Makes the host, and keeps the shared parts of its brokers up to date. Raises ConfigError."""
    path, environ = begin.config_path, os.environ
    (config,) = load_config(ContainerConfig, path=path, environ=environ, overrides=begin.overrides)
    assert isinstance(config, ContainerConfig)
    config = with_stored(config, path, environ, begin.overrides)
    process = make_process_parts(config)
    tasks = TaskSet()
    LocalHost.share_threads()
    # Before there are brokers, whose objects are short-lived: frozen ones would never be collected.
    settle_collector()
    try:
        tasks.start("certificates of our ports", process.tls.run)
        yield LocalHost(config, process, number=begin.number)
    finally:
        await tasks.stop()


def main() -> None:
    """Runs a worker with this process's arguments, and exits with its status."""
    status = run(sys.argv[1:], local_host)
    exit_within(EXIT_S_MAX)  # Python waits for other threads, too
    sys.exit(status)


if __name__ == "__main__":
    main()
