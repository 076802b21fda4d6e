"""The end of a run: findings, a table and the verdict line from its files; telemetry for the report."""

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from cli.lab.chaos.checkers import Recovery, check, end_of, recoveries, sort
from cli.lab.chaos.history import AnyEntry, HistoryError, Run, read_history
from cli.lab.chaos.summary import findings_text, is_clean, table, verdict
from cli.lab.demo_end import TELEMETRY, keep_telemetry_only, print_report_command
from keelmq.remoting.records import AnyRecord, SendGap, decode_record, encode_record, name_of

HISTORY = "history.jsonl"
CLUSTER_NAME, BROKER_NAME = "KeelCluster", "broker-a"
HOUR_MS = 3_600_000
OWN = "chaos"
"""Folder of our own telemetry: what producers saw of each fault of a master."""


def judge(directory: Path, broker_ids: Mapping[str, int], *, keep: bool) -> int:
    """Prints the result and returns the exit code. Deletes data and logs of a clean run unless `keep`."""
    entries = read_history(directory / HISTORY)
    world = sort(entries)
    put_gaps(directory, recoveries(world), broker_ids, began_wall_ms=run_of(entries).wall_ms)
    began_ms = run_of(entries).wall_ms
    drop_strays(directory, from_ms=began_ms, to_ms=began_ms + end_of(world) // 1_000)
    findings = check(world)
    clean = is_clean(world, findings)
    print()
    _print(table(recoveries(world)), findings_text(findings))
    if clean and not keep:
        keep_telemetry_only(directory, HISTORY)
    print(f"history       {directory / HISTORY}")
    if not clean or keep:
        print(f"data, logs    {directory}")
    print_report_command(directory)
    print(verdict(run_of(entries).seed, world, findings), flush=True)
    return 0 if clean else 1


def check_file(path: Path) -> int:
    """Runs the checkers on the history of an earlier run; returns the exit code. HistoryError: the file is
    not a history."""
    entries = read_history(path)
    world = sort(entries)
    findings = check(world)
    _print(table(recoveries(world)), findings_text(findings))
    print(verdict(run_of(entries).seed, world, findings), flush=True)
    return 0 if is_clean(world, findings) else 1


def _print(*texts: Iterator[str]) -> None:
    for line in itertools.chain(*texts):
        print(line)


def run_of(entries: Sequence[AnyEntry]) -> Run:
    """Returns the first entry. HistoryError: it is not a Run."""
    if not entries or not isinstance(entries[0], Run):
        raise HistoryError(
            "the first line of a history describes the run: this file has another one, or none"
        )
    return entries[0]


def telemetry_of(directory: Path) -> Iterator[AnyRecord]:
    """Yields every telemetry record of the programs; skips incomplete lines, which a kill leaves."""
    for path in sorted(directory.glob(f"*/{TELEMETRY}/**/*.jsonl*")):
        for line in path.read_bytes().splitlines():
            try:
                yield decode_record(line)
            except msgspec.DecodeError:
                continue


def drop_strays(directory: Path, *, from_ms: int, to_ms: int) -> None:
    """Deletes telemetry of clocks that had jumped: hours outside the run would stretch every diagram."""
    for hour in directory.glob(f"*/{TELEMETRY}/*/dt=*/hour=*"):
        name = f"{hour.parent.name[3:]} {hour.name[5:]} +0000"
        start_ms = int(datetime.strptime(name, "%Y-%m-%d %H %z").timestamp() * 1_000)
        if not from_ms - HOUR_MS < start_ms <= to_ms:
            shutil.rmtree(hour)


def put_gaps(
    directory: Path, found: Sequence[Recovery], broker_ids: Mapping[str, int], *, began_wall_ms: int
) -> None:
    """Writes send gaps for `keelmq report`: how long producers waited after a fault of the master."""
    gaps = [
        SendGap(
            ts=began_wall_ms + each.start_t // 1_000 + each.ms,
            cluster_name=CLUSTER_NAME,
            broker_name=BROKER_NAME,
            broker_id=broker_ids[each.master],
            program=each.master,
            started_ts=began_wall_ms + each.start_t // 1_000,
            gap_ms=each.ms,
        )
        for each in found
        if each.ms is not None and each.master in each.targets and each.master in broker_ids
    ]
    if gaps:
        path = directory / OWN / TELEMETRY / name_of(SendGap) / f"{OWN}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(map(encode_record, gaps)))
