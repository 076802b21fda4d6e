"""Writes keelmq/blocking.py from the asyncio clients: PYTHONPATH=. python tools/blocking_clients.py

Constructors, methods and properties have the signatures and docstrings of the asyncio clients. What differs,
such as listeners in threads, is written by hand in keelmq/client/blocking_base.py.
"""

import ast
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from keelmq.client import blocking_base
from keelmq.client.consumer.group_consumer import GroupConsumer
from keelmq.client.consumer.lite_pull_consumer import LitePullConsumer
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.consumer.push_consumer import PushConsumer
from keelmq.client.producer.producer import Producer
from keelmq.client.producer.transaction import TransactionProducer

ROOT = Path(__file__).parent.parent
FILE = ROOT / "keelmq" / "blocking.py"
FUNCTIONS = {"listener": "BlockingListener", "check": "BlockingCheck"}
"""Arguments that are coroutine functions of the asyncio clients, and plain functions here."""
LEFT_OUT = {
    "send_async", "begin", "end",  # send_soon() and transaction() are written by hand
    "adopted", "arrived", "released",  # called by GroupMember
    "client",  # connections that asyncio clients share
}  # fmt: skip


class BlockingClass(NamedTuple):
    """A blocking class. `opens`: it has a constructor. `methods`: it has the client's own methods."""

    name: str
    client: type
    bases: str
    doc: str
    opens: bool = True
    methods: bool = True


CLASSES = (
    BlockingClass("_Sender", Producer, "BlockingSender[P]", "What both producers do.", opens=False),
    BlockingClass("BlockingProducer", Producer, "_Sender[Producer]", "See keelmq.Producer.", methods=False),
    BlockingClass(
        "BlockingTransactionProducer",
        TransactionProducer,
        "_Sender[TransactionProducer], BlockingTransactions",
        "See keelmq.TransactionProducer. `check` runs in separate threads.",
    ),
    BlockingClass("BlockingPullConsumer", PullConsumer, "Blocking[PullConsumer]", "See keelmq.PullConsumer."),
    BlockingClass(
        "_Member", GroupConsumer, "BlockingMember[G]", "What both members of a group do.", opens=False
    ),
    BlockingClass(
        "BlockingLitePullConsumer",
        LitePullConsumer,
        "_Member[LitePullConsumer], BlockingMessages",
        "See keelmq.LitePullConsumer. `for message in consumer` counts a message as consumed when the loop\n"
        "requests the next one.",
    ),
    BlockingClass(
        "BlockingPushConsumer",
        PushConsumer,
        "_Member[PushConsumer]",
        "See keelmq.PushConsumer. The listener runs in settings.consume_concurrency separate threads. A\n"
        "listener that takes too long cannot be stopped: its messages are redelivered while it runs. The\n"
        "threads are daemons: one that hangs does not keep the process alive after close().",
    ),
)

HEAD = '''"""The clients for programs without asyncio: `from keelmq.blocking import BlockingProducer`.

    with BlockingProducer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"1"))

They have the arguments and the errors of the asyncio clients; calls block. One thread with an event loop
serves all clients of a process; it starts with the first client and ends with the last. Any thread may call
them. Do not use them inside a coroutine: a call would block its event loop.
"""

# Written by tools/blocking_clients.py from the asyncio clients: change them, and run it.

from functools import partial

from keelmq.client.core.checks import check_callable
from keelmq.client.lifecycle import ClientClosed
'''


def text() -> str:
    """The file, formatted."""
    public = [each.name for each in CLASSES if not each.name.startswith("_")]
    names = sorted({*public, "BlockingConsumer", "BlockingTransaction", "ClientClosed"})
    classes = "\n\n".join(_class(each) for each in CLASSES)
    short = 'BlockingConsumer = BlockingLitePullConsumer\n"""The consumer that most programs need."""'
    body = f"__all__ = {names!r}\n\n\n{classes}\n\n{short}\n"
    found = HEAD + _imports(body, names) + "\n" + body
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FILE), "-"]
        found = subprocess.run(ruff, input=found, capture_output=True, text=True, check=True).stdout
    return found


def _class(made: BlockingClass) -> str:
    bases = (base for base in vars(blocking_base).values() if isinstance(base, type))
    written = {name for base in bases if issubclass(base, blocking_base.Blocking) for name in vars(base)}
    definition = _definition(made.client)
    lines = inspect.getsource(made.client).splitlines()
    parts = [textwrap.indent(f'"""{made.doc}"""', "    ")]
    for node in definition.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name == "__init__" and made.opens:
            parts.append(_constructor(made.client.__name__, node))
        elif made.methods and not node.name.startswith("_") and node.name not in written | LEFT_OUT:
            parts.append(_method(node, lines))
    return f"class {made.name}({made.bases}):\n" + "\n\n".join(parts) + "\n"


def _definition(client: type) -> ast.ClassDef:
    (definition,) = ast.parse(inspect.getsource(client)).body
    assert isinstance(definition, ast.ClassDef)
    return definition


def _constructor(client: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = node.args
    for argument in given.args:
        if argument.arg in FUNCTIONS:
            argument.annotation = ast.Name(FUNCTIONS[argument.arg])
    kept = [i for i, argument in enumerate(given.kwonlyargs) if argument.arg not in LEFT_OUT]
    given.kwonlyargs, given.kw_defaults = (
        [given.kwonlyargs[i] for i in kept],
        [given.kw_defaults[i] for i in kept],
    )
    checks = [f'check_callable("{each.arg}", {each.arg})' for each in given.args if each.arg in FUNCTIONS]
    body = [*checks, f"super().__init__(lambda: {client}({_passed(given)}))"]
    return f"    def __init__({ast.unparse(given)}) -> None:\n" + textwrap.indent("\n".join(body), " " * 8)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str:
    """The header and the docstring as they are, and a call of the client."""
    is_property = bool(node.decorator_list)
    documentation = node.body[0]
    assert isinstance(documentation, ast.Expr) and documentation.end_lineno, f"{node.name} has no docstring"
    first = node.decorator_list[0].lineno if is_property else node.lineno
    header = "\n".join(lines[first - 1 : documentation.end_lineno]).replace("async def ", "def ", 1)
    called = f"self._open_client.{node.name}" + ("" if is_property else f"({_passed(node.args)})")
    call = (
        f"self._run({called})" if isinstance(node, ast.AsyncFunctionDef) else f"self._call(lambda: {called})"
    )
    returns = node.returns is not None and ast.unparse(node.returns) != "None"
    return f"{header}\n        {'return ' if returns else ''}{call}"


def _passed(given: ast.arguments) -> str:
    names = [each.arg for each in given.args if each.arg != "self"]
    first = [f"partial(self._in_a_thread, {name})" if name in FUNCTIONS else name for name in names]
    return ", ".join(first + [f"{each.arg}={each.arg}" for each in given.kwonlyargs])


def _imports(body: str, names: list[str]) -> str:
    """The imports of these names and of all that the body uses, from the modules that define them."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)} | set(names)
    found = {}
    for module in [blocking_base, *(inspect.getmodule(each.client) for each in CLASSES)]:
        assert module is not None
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ImportFrom):
                found |= {each.name: node.module for each in node.names}
            elif isinstance(node, ast.ClassDef):
                found[node.name] = module.__name__
            elif isinstance(node, ast.Assign):
                found |= {each.id: module.__name__ for each in node.targets if isinstance(each, ast.Name)}
    return "".join(f"from {found[name]} import {name}\n" for name in sorted(used & set(found)))


if __name__ == "__main__":
    FILE.write_text(text())
