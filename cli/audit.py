"""keelmq audit: shows the audit logs of programs on this host, or files that were copied from others."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.command_line import print
from keelmq.runtime.printable import printable_line
from keelmq.security.audit.reader import KEPT_IN, AuditFilter, AuditReader, AuditReadError, Entry, series_of
from keelmq.security.core.audited import Outcome

DEFAULT_PLACES: Final = ("~/store/audit", "~/namesrv/audit", "~/keelmqController/audit")
"""The default places of programs' audit logs."""
WHERE: Final = f"{KEPT_IN}; by default {', '.join(DEFAULT_PLACES)}"
FOLLOW_S: Final = 0.5
_AGO: Final = re.compile(r"(?P<count>\d{1,6})(?P<unit>[smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
HEAD: Final = f"{'TIME (UTC)':<24}{'OUTCOME':<9}{'WHERE':<26}{'WHO':<38}{'WHAT':<36}ON"


def audit(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILES", help="Files, older ones with .NUMBER (or --dir)")
    ] = None,
    directory: Annotated[
        list[Path] | None,
        typer.Option(
            "--dir",
            metavar="PATH",
            help=f"auditPath; may be repeated (default: those that exist of {', '.join(DEFAULT_PLACES)})",
        ),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="2026-03-01T12:00 (UTC), or 90s, 30m, 2h, 7d ago")
    ] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="End of the time span, as --since; excluded")
    ] = "",
    user: Annotated[
        str,
        typer.Option(
            "--user", metavar="NAME", help="Requests of this user, also refused ones that claimed its name"
        ),
    ] = "",
    code: Annotated[
        list[int] | None, typer.Option("--code", help="Requests with this code; may be repeated")
    ] = None,
    operation: Annotated[
        str, typer.Option("--operation", metavar="TEXT", help="A part of the request's name, such as topic")
    ] = "",
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", help="Requests about this topic")] = "",
    resource: Annotated[
        str, typer.Option("--resource", metavar="TEXT", help="A part of any name in the request")
    ] = "",
    outcome: Annotated[
        list[Outcome] | None,
        typer.Option("--outcome", help="ok, refused, failed or unknown; may be repeated"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The lines themselves, merged and filtered")
    ] = False,
) -> None:
    """Show who has administered what, and who was refused."""
    now = datetime.now(UTC)
    audit_filter = AuditFilter(
        since=_time("--since", since, now),
        until=_time("--until", until, now),
        user=user,
        codes=frozenset(code or ()),
        operation=operation,
        topic=topic,
        resource=resource,
        outcomes=frozenset(outcome or ()),
    )
    try:
        places = _places(files, directory)
        if not _has_files(places) and not follow:
            raise typer.Exit(1)
        with contextlib.closing(AuditReader(places)) as reader:
            _show(reader, audit_filter, follow=follow, as_json=as_json)
    except AuditReadError as error:
        print(f"keelmq audit: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit from None


def _show(reader: AuditReader, audit_filter: AuditFilter, *, follow: bool, as_json: bool) -> None:
    """Raises AuditReadError, also if all lines are damaged: they are of another program's log."""
    told = found = count = 0
    if not as_json:
        print(HEAD)
    while True:
        for entry in reader.read():
            found += 1
            if audit_filter.matches(entry):
                count += 1
                print(json.dumps(entry) if as_json else "\n".join(_rows(entry)))
        if reader.unreadable_lines > told:
            told = reader.unreadable_lines
            print(f"keelmq audit: {told} lines are damaged and not shown", file=sys.stderr)
        if not follow:
            break
        sys.stdout.flush()
        time.sleep(FOLLOW_S)
    if told and not found:
        raise AuditReadError(f"these are no files of an audit log. Programs keep theirs in {WHERE}")
    if not count:
        print("keelmq audit: no such line; without options all are shown", file=sys.stderr)


def _rows(entry: Entry) -> Iterable[str]:
    """Yields the row of an entry, and one for each change. Nothing in it can move a terminal's cursor."""
    who = str(entry.get("user") or (f"{entry['claimed']}?" if "claimed" in entry else "-"))
    address = entry.get("address", "")
    code = entry.get("code", "")
    what = str(entry.get("operation") or code)
    time_ = str(entry.get("ts", "")).replace("T", " ").removesuffix("Z")
    who = f"{who} {address}{' TLS' if entry.get('tls') else ''}"
    on = _short(" ".join(_named(entry)))
    where = entry.get("node", "")
    outcome = entry.get("outcome", "")
    yield printable_line(f"{time_:<24}{outcome:<9}{where:<25} {who:<37} {what:<35} {on}".rstrip())
    if entry.get("remark"):
        yield printable_line(f"{'':<24}{entry['remark']}")
    if entry.get("unwritten"):
        yield printable_line(f"{'':<24}and {entry['unwritten']} more before it, which have no line")
    changes = entry.get("changes")
    if not isinstance(changes, dict):
        return
    for name, change in changes.items():
        old, new = (change.get("old"), change.get("new")) if isinstance(change, dict) else (None, change)
        yield printable_line(f"{'':<24}{name}: {_value(old)} -> {_value(new)}")


def _named(entry: Entry) -> Iterable[str]:
    resources, fields = entry.get("resources"), entry.get("fields")
    yield from map(str, resources if isinstance(resources, list) else ())
    if isinstance(fields, dict):
        shown = ("topic", "b", "group", "groupName", "consumerGroup") if resources else ()
        yield from (f"{name}={value}" for name, value in fields.items() if name not in shown)


def _value(value: Any) -> str:
    return "none" if value is None else _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}... (--json has all)"


def _places(files: list[Path] | None, directories: list[Path] | None) -> list[Path]:
    places = [each.expanduser() for each in (*(directories or ()), *(files or ()))]
    if places:
        return places
    found = [path for each in DEFAULT_PLACES if (path := Path(each).expanduser()).is_dir()]
    if not found:
        raise AuditReadError(f"there is no audit log in {', '.join(DEFAULT_PLACES)}: give --dir, {WHERE}")
    # A directory that has no files yet is named only if no other one has any.
    return [path for path in found if series_of([path])] or found


def _has_files(places: Sequence[Path]) -> bool:
    """Names the places that have no file of an audit log. Returns whether another one has."""
    empty = [place for place in places if not series_of([place])]
    for place in empty:
        print(
            f"keelmq audit: there are no audit files in {place}. Programs keep theirs in {WHERE}, and make "
            "them with the first line",
            file=sys.stderr,
        )
    return len(empty) < len(places)


def _time(option: str, text: str, now: datetime) -> str:
    """Returns a time in the format of the files. Raises BadParameter."""
    if not text:
        return ""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            when = now - timedelta(**{_UNITS[ago["unit"]]: int(ago["count"])})
        else:
            when = datetime.fromisoformat(text)
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-03-01T12:00 (UTC), or 90s, 30m, 2h or 7d ago",
            param_hint=option,
        ) from error
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
