"""Shared code of the commands of backup, restore and verify: requests, errors in one line, reading their
files.

Exit codes: 0 done; 1 refused, or a difference was found; 2 usage; 3 no answer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.command_line import Refused, controllers_option, names_file, print, print_error, quiet_connection_log
from cli.credentials import checked_credentials
from cli.mqadmin.shell import REFUSED, exit_code_of, explain
from keelmq.client.admin import AdminClient, AdminError

INTERRUPTED = 130

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of lines")]
NewFile = Annotated[Path, typer.Argument(metavar="FILE", callback=names_file, help="The new file; mode 600")]
ControllersOption = Annotated[
    str | None, controllers_option("Controllers (default: those in the settings of the brokers of -n)")
]


def show(as_json: bool, value: Any, text: str) -> None:
    """Prints the result, as JSON or for people."""
    print(json.dumps(value, ensure_ascii=False) if as_json else text, flush=True)


def run_requests(
    action: Callable[[AdminClient], Awaitable[int]],
    credentials: Path | None,
    *,
    timeout_ms: int | None = None,
) -> None:
    """Runs `action` with an AdminClient, and ends with the exit code that it returns."""
    given = checked_credentials("keelmq", credentials)
    quiet_connection_log()

    async def main() -> int:
        async with AdminClient(credentials=given, timeout_ms=timeout_ms) as admin:
            return await action(admin)

    run_steps(lambda: asyncio.run(main()))


def run_steps(steps: Callable[[], int]) -> None:
    """Runs `steps`, which returns the exit code, and ends with it. Refusals become one line."""
    try:
        code = steps()
    except AdminError as error:
        print_error("keelmq", explain(error))
        code = exit_code_of(error)
    except Refused as error:
        print_error("keelmq", str(error))
        code = REFUSED
    except OSError as error:
        print_error("keelmq", f"{error.filename or 'files'}: {error.strerror or error}")
        code = REFUSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


def read_file(path: Path, limit: int) -> bytes:
    """Returns the content. Raises Refused: it cannot be read, or has more than `limit` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise Refused(f"{path} has more than {limit} bytes: it is not a backup")
    return data
