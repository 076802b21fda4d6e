"""One raft member as a process, driven by lines of JSON: python -m tests.cluster.raft_process SETTINGS-JSON.

In: {"append": "text"} | {"events": true} | {"status": true} | {"barrier": true}
    | {"read": true} (how many events, freshly) | {"add": "n3", "address": [host, port]} | {"remove": "n3"}
    | {"transfer": "n1"}. Out: a line each.
"""

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.replicator import Committed, RaftReplicator, RaftSettings
from tests.support.raft_group import SECRET, ListMachine


class RepeatableMachine(ListMachine):
    """Applies an event once, as the controller's epochs do: a client repeats until it hears the result."""

    def apply(self, event: bytes) -> object:
        return self.events.index(event) + 1 if event in self.events else super().apply(event)


async def answer(replicator: RaftReplicator, machine: ListMachine, question: dict[str, Any]) -> object:
    if "append" in question:
        outcome = await replicator.append(question["append"].encode())
        return outcome.result if isinstance(outcome, Committed) else type(outcome).__name__
    if "barrier" in question:
        return type(await replicator.barrier()).__name__
    if "read" in question:
        outcome = await replicator.barrier()
        return len(machine.events) if isinstance(outcome, Committed) else type(outcome).__name__
    if "add" in question:
        host, port = question["address"]
        return type(await replicator.add_member(question["add"], (host, port))).__name__
    if "remove" in question:
        return type(await replicator.remove_member(question["remove"])).__name__
    if "transfer" in question:
        return type(await replicator.transfer_leadership(question["transfer"])).__name__
    if "events" in question:
        return [event.decode() for event in machine.events]
    return replicator.status()


async def main(settings: dict[str, Any]) -> None:
    if "nofile" in settings:
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings["nofile"], settings["nofile"]))
    machine = RepeatableMachine()
    replicator = RaftReplicator(
        machine,
        RaftSettings(
            self_id=settings["self_id"],
            members={name: tuple(address) for name, address in settings["members"].items()},
            directory=Path(settings["directory"]),
            cluster_id="processes",
            secret=None if "tls" in settings else SECRET,
            tls=TlsFiles(*map(Path, settings["tls"])) if "tls" in settings else None,
            append_deadline_s=1.0,
            compaction_entries=settings["compaction_entries"],
        ),
    )
    replicator.on_active_changed(lambda active: print(json.dumps({"active": active}), flush=True))
    await replicator.start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        print(json.dumps({"answer": await answer(replicator, machine, json.loads(line))}), flush=True)
    await replicator.stop()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
