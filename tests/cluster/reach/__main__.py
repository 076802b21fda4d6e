"""Traffic from inside and outside of an address translation while pods are upgraded, drained, lost and moved
(make reach).

    python -m tests.cluster.reach [--only SCENARIO,...] [--clients CLIENT,...] [--away SECONDS]

Prints a line for each client and scenario. Exit code 1: a send failed, an acknowledged message is lost, or a
client has seen or used an address of the other side. 2: not possible here. Needs root.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cli.lab.chaos.net import NETWORK, Net, missing
from tests.cluster.reach.clients import Row, Senders
from tests.cluster.reach.net import INSIDE, OUTER_HOST, OUTSIDE, ZonedNet
from tests.cluster.reach.pods import AWAY_S, ZONES, Pods
from tests.cluster.reach.scenarios import SCENARIOS

MORE = 100
PREFIXES = {INSIDE: f"{NETWORK}.", OUTSIDE: f"{OUTER_HOST}:"}
HEADER = ("scenario", "client", "sent", "acked", "failed", "lost", "longest gap ms")


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as Markdown."""
    cells = [HEADER] + [
        (r.scenario, r.client, str(r.sent), str(r.acked), str(r.failed), str(r.lost), str(r.longest_gap_ms))
        for r in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


async def play(
    network: ZonedNet, directory: Path, options: argparse.Namespace
) -> tuple[list[Row], list[str]]:
    """Returns the rows, and what else is wrong."""
    rows: list[Row] = []
    async with (
        Pods(network, directory, options.away) as pods,
        Senders(pods, directory, options.clients) as senders,
    ):
        for reason in senders.missing:
            print(f"left out: {reason}", flush=True)
        for name in options.only:
            began = time.monotonic()
            print(f"{name} ...", flush=True)
            senders.begin()
            await SCENARIOS[name](pods)
            await pods.all_ready(f"after {name}")
            await senders.more(MORE)
            rows += senders.rows(name)
            print(f"{table(rows)}\n{name} took {time.monotonic() - began:.0f} s", flush=True)
        await senders.stop()
        stored = {side: await senders.stored(side) for side in (INSIDE, OUTSIDE)}
        shown = {side: senders.shown(side) for side in (INSIDE, OUTSIDE)}
        topics = {sender.name: sender.topic for sender in senders.senders}
        wrong = wrong_addresses(network, shown)
    rows = [replace(row, lost=lost_of(row, stored[INSIDE][topics[row.client]])) for row in rows]
    for side, found in stored.items():
        for topic, bodies in found.items():
            print(f"read {side}: {topic}: {len(bodies)}, {len(bodies) - len(set(bodies))} of them twice")
    if stored[INSIDE] != stored[OUTSIDE]:
        wrong.append("what was read outside is not what was read inside")
    return rows, wrong


def lost_of(row: Row, stored: Sequence[str]) -> int:
    """Returns how many acknowledged messages of a row are not stored."""
    return sum((Counter(row.acked_bodies) - Counter(stored)).values())


def wrong_addresses(network: ZonedNet, shown: dict[str, set[str]]) -> list[str]:
    """Returns a line for each address that name servers showed at the wrong side, and for each side whose
    clients have sent packets to the other one."""
    wrong = [
        f"{side}: name servers showed {address}"
        for side, addresses in shown.items()
        for address in sorted(addresses)
        if not address.startswith(PREFIXES[side])
    ]
    for side, addresses in shown.items():
        print(f"{side}: name servers showed {len(addresses)} addresses: {', '.join(sorted(addresses))}")
        if not addresses:
            wrong.append(f"{side}: name servers showed no address")
        if packets := network.wrong_packets(side):
            wrong.append(f"{side}: {packets} packets to addresses of the other side")
    return wrong


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, with commas between them")
    parser.add_argument("--clients", default="", help="clients, with commas between them; all by default")
    parser.add_argument("--away", type=float, default=AWAY_S, help="seconds that a lost zone is away")
    parser.add_argument("--directory", type=Path, help="keep the logs and stores here")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    options.clients = [each for each in options.clients.split(",") if each]
    if unknown := [each for each in options.only if each not in SCENARIOS]:
        parser.error(f"--only: no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return options


def main() -> int:
    options = options_of()
    reason = missing() if os.geteuid() == 0 else "only root translates addresses between namespaces"
    if reason is not None:
        print(f"reach: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="keelmq-reach-") as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        net = Net(directory)
        net.enter()
        network = ZonedNet(net, ZONES)
        rows, wrong = asyncio.run(play(network, directory, options))
    print(table(rows))
    for row in rows:
        for why in row.why:
            print(f"{row.scenario}, {row.client}: {why}")
    print("\n".join(wrong) or "no address of the other side was shown or used")
    good = not wrong and all(row.is_good for row in rows)
    print(
        f"REACH rows={len(rows)} acked={sum(row.acked for row in rows)} "
        f"failed={sum(row.failed for row in rows)} lost={sum(row.lost for row in rows)} "
        f"verdict={'ok' if good else 'FAILED'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
