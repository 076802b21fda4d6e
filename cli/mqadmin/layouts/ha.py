"""Texts of `mqadmin haStatus`: RocketMQ's layout, and the progress of replicas that catch up.

KeelMQ's columns and lines come after RocketMQ's, so that scripts which count columns keep working.
"""

from datetime import datetime

from keelmq.remoting.operations.broker import HaClientRuntimeInfo, HaConnectionRuntimeInfo, HaRuntimeInfo

_SLAVE = "%-32s  %-16s %16s %16s %16s %16s  %-9s  %9s  %s"
_TITLES = (
    "#SlaveAddr",
    "#SlaveAckOffset",
    "#Diff",
    "#TransferSpeed(KB/s)",
    "#Status",
    "#TransferFromWhere",
    "#BrokerId",
    "#Progress",
    "#ETA",
)
UNKNOWN = "-"
"""RocketMQ's brokers do not send it, or there is no value."""
NEVER = "not nearer"
"""The master's log grows as fast as the replica copies it."""


def ha_status(address: str, status: HaRuntimeInfo) -> str:
    """One broker. Its first line is empty, as RocketMQ's."""
    lines = _master(address, status) if status.master else _slave(status.ha_client_runtime_info)
    if status.fault:
        lines.append(f"#Fault\t{' '.join(status.fault.split())}")
    return "\n".join(["", *lines])


def _master(address: str, status: HaRuntimeInfo) -> list[str]:
    end = status.master_commit_log_max_offset
    return [
        f"#MasterAddr\t{address}",
        f"#MasterCommitLogMaxOffset\t{end}",
        f"#SlaveNum\t{len(status.ha_connection_info)}",
        f"#InSyncSlaveNum\t{status.in_sync_slave_nums}",
        _SLAVE % _TITLES,
        *(_row(each, end) for each in status.ha_connection_info),
    ]


def _row(slave: HaConnectionRuntimeInfo, end_offset: int) -> str:
    told = slave.broker_id is not None
    return _SLAVE % (
        slave.addr,
        slave.slave_ack_offset,
        slave.diff,
        f"{slave.transferred_byte_in_second / 1024:.2f}",
        "OK" if slave.in_sync else "Fall Behind",
        slave.transfer_from_where,
        slave.broker_id if told else UNKNOWN,
        progress_text(slave.began_at_offset, slave.slave_ack_offset, end_offset),
        eta_text(slave.eta_millis) if told else UNKNOWN,
    )


def _slave(client: HaClientRuntimeInfo) -> list[str]:
    lines = [
        f"#MasterAddr\t{client.master_addr or UNKNOWN}",
        f"#CommitLogMaxOffset\t{client.max_offset}",
        f"#TransferSpeed(KB/s)\t{client.transferred_byte_in_second / 1024:.2f}",
        f"#LastReadTime\t{_time(client.last_read_timestamp)}",
        f"#LastWriteTime\t{_time(client.last_write_timestamp)}",
        f"#MasterFlushOffset\t{client.master_flush_offset}",
        f"#Activated\t{str(client.activated).lower()}",
    ]
    return [*lines, f"#ETA\t{eta_text(client.eta_millis)}"] if client.activated else lines


def progress_text(from_offset: int | None, at_offset: int, to_offset: int) -> str:
    """Returns the share of the bytes missing at the link's start that is copied, rounded down: 100% is
    exact. from_offset None: RocketMQ's brokers do not report where the link began."""
    if at_offset >= to_offset:
        return "100.0%"
    if from_offset is None:
        return UNKNOWN
    done = max(at_offset - from_offset, 0) * 1000 // max(to_offset - from_offset, 1)
    return f"{done // 10}.{done % 10}%"


def eta_text(eta_ms: int | None) -> str:
    """Returns "1h 02m 03s", at the rate of the last seconds, rounded up; NEVER for None."""
    if eta_ms is None:
        return NEVER
    minutes, seconds = divmod(-(-eta_ms // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m {seconds:02}s"
    return f"{minutes}m {seconds:02}s" if minutes else f"{seconds}s"


def _time(wall_ms: int) -> str:
    """Returns the time in this machine's time zone, in RocketMQ's format."""
    if wall_ms <= 0:
        return UNKNOWN
    return datetime.fromtimestamp(wall_ms / 1000).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
