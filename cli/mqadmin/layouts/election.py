"""Texts of mqadmin that RocketMQ does not have: explained and past elections, replicas to forget."""

from collections.abc import Sequence
from datetime import UTC, datetime

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.controller import CleanExplanation, ElectionExplanation, PastElection

_CANDIDATE = "%-4s  %-22s  %-7s  %-6s  %-6s  %-16s  %-14s  %-10s  %s"
_CANDIDATE_TITLES = (
    "#BID",
    "#Addr",
    "#InSync",
    "#Alive",
    "#Epoch",
    "#Max Offset",
    "#Behind",
    "#Priority",
    "#Why",
)
_ELECTION = "%-24s  %-22s  %-11s  %-11s  %-6s  %-9s  %s"
_ELECTION_TITLES = (
    "#Time (UTC)",
    "#Broker Name",
    "#Old Master",
    "#New Master",
    "#Epoch",
    "#Found",
    "#Reason",
)
_PRIORITY_DEFAULT = 2_147_483_647


def explanation(cluster_name: str, broker_name: str, explained: ElectionExplanation) -> str:
    """electMaster --dry-run."""
    code = explained.code
    name = ResponseCode(code).name if code in set(ResponseCode) else str(code)
    winner = explained.new_master_broker_id
    lines = [
        "",
        f"#ClusterName\t{cluster_name}",
        f"#BrokerName\t{broker_name}",
        f"#NewMaster\t{'none' if winner is None else winner}",
        f"#Answer\t{name}: {explained.remark}",
        f"#Changes\t{'yes' if explained.is_change else 'nothing'}",
        f"#LosesMessages\t{'possibly: not from the SyncStateSet' if explained.unclean else 'no'}",
        "",
        _CANDIDATE % _CANDIDATE_TITLES,
    ]
    for each in explained.candidates:
        priority = each.election_priority
        lines.append(
            _CANDIDATE
            % (
                each.broker_id,
                each.broker_address,
                _yes(each.in_sync),
                _yes(each.alive),
                _or_dash(each.epoch),
                _or_dash(each.max_offset),
                _or_dash(each.behind_bytes),
                "-" if priority in (None, _PRIORITY_DEFAULT) else priority,
                each.why,
            )
        )
    return "\n".join(lines)


def elections(past: Sequence[PastElection]) -> str:
    """getElections. #Found: from the old master's last heartbeat to its detection."""
    lines = [_ELECTION % _ELECTION_TITLES]
    for each in past:
        found = "-"
        if each.detected_ts and each.last_heartbeat_ts:
            found = f"{each.detected_ts - each.last_heartbeat_ts} ms"
        lines.append(
            _ELECTION
            % (
                _time(each.ts),
                each.broker_name,
                _or_dash(each.old_master_broker_id),
                _or_dash(each.new_master_broker_id),
                each.master_epoch,
                found,
                each.reason + (" (UNCLEAN: messages may be lost)" if each.unclean else ""),
            )
        )
    return "\n".join(lines)


def would_forget(broker_name: str, found: CleanExplanation) -> str:
    """cleanBrokerMetadata --dry-run."""
    lines = [
        f"would forget broker {each.broker_id} of {each.broker_name} at {each.broker_address} "
        f"({'alive' if each.alive else 'not alive'})"
        for each in found.replicas
    ]
    if found.is_whole:
        lines.append(f"{broker_name} would have no replica left: the controllers forget the group")
    elif found.master_broker_id is not None:
        lines.append(f"broker {found.master_broker_id} is the master: another one would have to be elected")
    return "\n".join(lines)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if ms else "-"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
