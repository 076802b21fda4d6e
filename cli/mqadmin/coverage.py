"""RocketMQ's subcommands, and those that KeelMQ will not have: they print the reason, and exit with 1.

keelmq/upstream/names.json has the names of all. `make docs` writes the table into docs/reference/cli.md.
"""

from typing import Annotated, Final

import typer

from cli.command_line import print_error
from cli.mqadmin.shell import PROGRAM, REFUSED, app

_COLD: Final = "reads of old messages are not limited; setCommitLogReadAheadMode says how the log is read"
_STATIC: Final = "there are no static topics; updateTopic changes the queues of a topic at each master"
_ROCKSDB: Final = "there is no RocksDB"
NEVER: Final[dict[str, str]] = {
    "getColdDataFlowCtrInfo": _COLD,
    "updateColdDataFlowCtrGroupConfig": _COLD,
    "removeColdDataFlowCtrGroupConfig": _COLD,
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "dumpCompactionLog": "topics are not compacted, so there is no compaction log",
    "exportMetadataInRocksDB": f"{_ROCKSDB}: topics and groups are JSON below config/ of the store; "
    "exportMetadata asks a running broker",
    "rocksDBConfigToJson": f"{_ROCKSDB}: topics and groups are JSON already, below config/ of the store",
    "checkRocksdbCqWriteProgress": f"{_ROCKSDB}: consume queues are files below consumequeue/ of the store",
    "switchTimerEngine": f"{_ROCKSDB}: timers are read from the log, and need no other engine",
    "exportPopRecord": f"{_ROCKSDB}: what consumers have popped is in the revive topic, on every replica",
    **dict.fromkeys(
        (
            "getBrokerLiteInfo",
            "getLiteClientInfo",
            "getLiteGroupInfo",
            "getLiteTopicInfo",
            "getParentTopicInfo",
            "triggerLiteDispatch",
        ),
        "there are no lite topics; topicStatus and consumerProgress show topics and groups",
    ),
}
"""Why there is no such command."""


def never_text(name: str) -> str:
    """Returns the line that the command prints."""
    return f"{name}: not in KeelMQ: {NEVER[name]}"


def _register(name: str) -> None:
    def refuse(
        context: typer.Context,
        namesrv_addr: Annotated[str | None, typer.Option("-n", "--namesrvAddr", help="Ignored")] = None,
    ) -> None:
        print_error(PROGRAM, never_text(name))
        raise typer.Exit(REFUSED)

    app.command(
        name,
        hidden=True,
        help=f"Not in KeelMQ: {NEVER[name]}.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(refuse)


for _name in NEVER:
    _register(_name)
