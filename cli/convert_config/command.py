"""`keelmq convert-config`: makes files of KeelMQ from files of RocketMQ, and reports what became of each key.

Exit codes: 0 every file is converted; 1 a key asks for a feature that is missing, or is unknown, or a new
file would not start; 2 usage.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer
import yaml

from cli.command_line import print, refused
from cli.convert_config.lines import RENAMED, Row, Verdict, convert, settings_of
from cli.convert_config.yaml_files import NewFile, convert_yaml
from cli.doctor.files import Kind, kind_of, load
from keelmq.health.findings import Level
from keelmq.runtime.config import read_named
from keelmq.runtime.durable_file import replace_file
from keelmq.runtime.printable import printable_line

ENCODINGS: Final = ("utf-8", "gb18030")
"""gb18030 reads any bytes: files with comments in Chinese."""


class Converted(msgspec.Struct, frozen=True, rename="camel"):
    """One file. `problems`: why the new file would not start."""

    file: str
    program: str
    rows: list[Row]
    problems: list[str]
    outputs: list[str]


def convert_config(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Files of RocketMQ: *.conf, rmq-proxy.json, plain_acl.yml, docker-compose.yml, values.yaml",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Write the new files there (default: only report)"
        ),
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="Program that the files are for (default: from their keys)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines")] = False,
) -> None:
    """Turn configuration files of RocketMQ into files of KeelMQ, and report what became of each key.

    Changes none of the given files. A line that does not apply here stays in the new file as a comment.
    """
    read = [_read(path, kind) for path in files]
    if output is not None:
        _check_targets([output / new.name for each in read for new in each.new])
    converted = [_written(each, output) for each in read]
    if as_json:
        print(json.dumps({"files": msgspec.to_builtins(converted)}, ensure_ascii=False))
    else:
        for each in converted:
            _print(each)
    raise typer.Exit(0 if all(map(_is_whole, converted)) else 1)


class _Read(NamedTuple):
    """A file of RocketMQ, and what is made of it. is_private: it may have secrets, and so may these."""

    path: Path
    program: str
    rows: list[Row]
    new: list[NewFile]
    is_private: bool


def _read(path: Path, kind: Kind | None) -> _Read:
    try:
        text = _decoded(read_named(path))
        is_private = not path.stat().st_mode & 0o077
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from error
    if path.suffix in (".yml", ".yaml"):
        return _Read(path, "", *_of_yaml(path, text), is_private)
    name = path.name
    if path.suffix == ".json":  # RocketMQ's proxy has the only one: rmq-proxy.json
        text, name, kind = _lines_of_json(path, text), f"{path.stem}.conf", kind or Kind.PROXY
    settings = settings_of(text)
    kind = kind or kind_of({RENAMED.get(key, key): value for key, value in settings.items()})
    if kind is None:
        raise typer.BadParameter(
            f"{path}: its keys do not show which program it is for: give --kind, one of {', '.join(Kind)}"
        )
    new, rows = convert(text, kind)
    return _Read(path, kind, rows, [NewFile(name, new, kind)], is_private)


def _check_targets(targets: Sequence[Path]) -> None:
    """Refuses to overwrite a file, before anything is written."""
    for target in targets:
        if target.exists() or targets.count(target) > 1:
            raise typer.BadParameter(f"{target} would be overwritten: give another --output")


def _is_whole(converted: Converted) -> bool:
    left = {Verdict.MISSING, Verdict.UNKNOWN} & {row.verdict for row in converted.rows}
    return not left and not converted.problems


def _written(read: _Read, output: Path | None) -> Converted:
    """Writes the new files, without `output` only to check them."""
    problems = list[str]()
    with tempfile.TemporaryDirectory(prefix="keelmq-convert-") as scratch:
        for new in read.new:
            target = (output or Path(scratch)) / new.name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                replace_file(target, new.text.encode(), keep_backup=False, private=read.is_private)
            except OSError as error:
                raise refused(f"{target} cannot be written: {error.strerror}") from error
            findings = load(target, new.kind, target.name)[1] if new.kind is not None else []
            # Without --output, the reader knows nothing of the directory of the new file.
            problems += [
                each.text.replace(f"{target.parent}/", "") for each in findings if each.level is Level.FAILED
            ]
    outputs = [str(output / new.name) for new in read.new] if output else []
    return Converted(str(read.path), read.program, read.rows, problems, outputs)


def _decoded(content: bytes) -> str:
    for encoding in ENCODINGS[:-1]:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode(ENCODINGS[-1], errors="replace")


def _lines_of_json(path: Path, text: str) -> str:
    """Returns the settings as lines. Raises BadParameter: it is no object with settings."""
    try:
        found = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path}: JSON of settings is an object")
    return "".join(f"{key}={_text_of(value)}\n" for key, value in found.items())


def _text_of(value: object) -> str:
    """In one line: a text as it is, and anything else as JSON writes it."""
    return " ".join(value.split("\n")) if isinstance(value, str) else json.dumps(value)


def _of_yaml(path: Path, text: str) -> tuple[list[Row], list[NewFile]]:
    try:
        found = convert_yaml(list(yaml.safe_load_all(text)))
    except (yaml.YAMLError, RecursionError) as error:
        raise typer.BadParameter(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    if not found.is_known:
        raise typer.BadParameter(
            f"{path}: neither a plain_acl.yml nor a compose file, and it has no environment variables or "
            "files of RocketMQ"
        )
    return found.rows, found.files


def _print(converted: Converted) -> None:
    counts = ", ".join(
        f"{count} {verdict}" for verdict in Verdict if (count := _count(converted.rows, verdict))
    )
    print(f"{converted.file}: {converted.program or 'YAML'}; {counts or 'no settings'}")
    for row in converted.rows:
        if row.verdict is not Verdict.KEPT:
            where = f"line {row.line}, " if row.line else ""
            print(printable_line(f"  {where}{row.key}: {row.verdict}: {row.note}"))
    for problem in converted.problems:
        print(printable_line(f"  would not start: {problem}"))
    for output in converted.outputs:
        print(f"  written: {output}")


def _count(rows: Iterable[Row], verdict: Verdict) -> int:
    return sum(row.verdict is verdict for row in rows)
