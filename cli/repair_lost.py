"""keelmq repair --mark-lost: damaged ranges of the log with their messages, and the mark that is passed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from broker.admin.repair import RepairError, StoreReport, refuse_running
from broker.backup.mark_lost import LostRange, find_damage, mark_lost
from cli.backup.store import each_step
from cli.command_line import controllers_option, print, quiet_connection_log
from cli.credentials import checked_credentials
from cli.repair_group import RepairTarget, check_lost, group_of
from keelmq.client.admin import AdminClient
from keelmq.health.findings import plural

T = TypeVar("T")

LostOption = Annotated[
    str | None,
    typer.Option(
        "--mark-lost",
        metavar="START-END|all",
        help="Let consumers and replicas pass damaged ranges of the log that no replica has",
    ),
]
ControllersOption = Annotated[
    str | None,
    controllers_option("Controllers, which know the other replicas; for --resync and --mark-lost"),
]
BrokerNameOption = Annotated[
    str | None, typer.Option("--broker-name", help="brokerName, without controllers")
]
BrokerIdOption = Annotated[int | None, typer.Option("--broker-id", help="brokerId, without controllers")]
GoneOption = Annotated[
    list[int] | None,
    typer.Option(
        "--gone", metavar="ID", help="For --mark-lost: this replica never comes back (repeat the option)"
    ),
]
AloneOption = Annotated[
    bool, typer.Option("--alone", help="For --mark-lost: the broker has never had a replica")
]


def ask_group(action: Callable[[AdminClient], Awaitable[T]], credentials: Path | None) -> T:
    """Runs requests to the other replicas. Raises AdminError, Refused."""
    given = checked_credentials("keelmq", credentials)
    quiet_connection_log()

    async def main() -> T:
        async with AdminClient(credentials=given) as admin:
            return await action(admin)

    return asyncio.run(main())


async def _checked_lost(
    admin: AdminClient, store: StoreReport, target: RepairTarget, ranges: list[LostRange], gone: list[int]
) -> list[str]:
    return await check_lost(admin, store, await group_of(admin, store, target), ranges, gone)


def show_lost(
    store: StoreReport,
    wanted: str,
    target: RepairTarget,
    credentials: Path | None,
    gone: list[int],
    *,
    alone: bool,
    yes: bool,
) -> None:
    """Shows the damaged ranges that are wanted, START-END or all, and marks them if `yes` and if no replica
    has a sound copy. Raises RepairError, Refused, AdminError, OSError."""
    refuse_running(store)
    found: list[LostRange] = []
    print()
    each_step(find_damage(store, found), "read", 0, as_json=False)
    chosen = _chosen(found, wanted)
    if not chosen:
        print("The confirmed log has no damaged range. Nothing was changed.")
        return
    for lost in chosen:
        print(f"damaged {lost.start}-{lost.end} ({lost.end - lost.start} bytes): {lost.reason}")
        for each in lost.queues:
            print(f"  queue {each.topic} {each.queue_id}: {_numbers(each.numbers)}")
        if not lost.queues:
            print("  no entry of a ConsumeQueue points there")
    if alone and not store.epochs.entries:
        print("--alone: no other replica was asked")
    else:
        for line in ask_group(lambda admin: _checked_lost(admin, store, target, chosen, gone), credentials):
            print(line)
    count = plural(sum(each.message_count for each in chosen), "message")
    if not yes:
        print(
            f"\n{count} would be lost. Nothing was changed: add --yes to mark them while the broker is "
            "stopped."
        )
        return
    kept = mark_lost(store, chosen)
    verb = "is" if count.startswith("1 ") else "are"
    print(f"\n{count} {verb} marked as lost: consumers pass it. The damaged bytes are in {kept}.")
    print("Start the broker now. Replicas whose copies are damaged there, too, get the mark from it.")


def _chosen(found: list[LostRange], wanted: str) -> list[LostRange]:
    """Returns the damaged ranges that are named. RepairError: the named range is not one of them."""
    if wanted == "all":
        return found
    start, dash, end = wanted.partition("-")
    if not (dash and start.isdecimal() and end.isdecimal()):
        raise RepairError(f"--mark-lost {wanted}: give START-END, as they are shown, or all")
    chosen = [each for each in found if (each.start, each.end) == (int(start), int(end))]
    if not chosen:
        known = ", ".join(f"{each.start}-{each.end}" for each in found) or "none"
        raise RepairError(f"{wanted} is no damaged range of the confirmed log; these are: {known}")
    return chosen


def _numbers(numbers: Sequence[int]) -> str:
    """Returns queue offsets, consecutive ones as first..last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in runs]
    return f"queue offset{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"
