"""read_rows: files of users with JSON arrays of configurations."""

import json
from pathlib import Path
from typing import Any, TypeVar

import typer
from pydantic import ValidationError

from keelmq.remoting.operation import Wire

FILE_BYTES_MAX = 16_777_216

Model = TypeVar("Model", bound=Wire)


def read_rows(path: Path, model: type[Model], what: str) -> list[Model]:
    """Returns the rows of a file. Raises BadParameter with one line: which row and member has another form,
    or why there are none."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise typer.BadParameter(f"{path} has more than {FILE_BYTES_MAX} bytes")
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}") from None
    if not isinstance(value, list):
        raise typer.BadParameter(f"{path} is not a JSON array of {what}")
    rows = []
    for at, each in enumerate(value):
        try:
            rows.append(model.model_validate(each))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            text = f"{path}: [{at}]{f'.{where}' if where else ''}: {problem['msg']}"
            raise typer.BadParameter(text) from None
    return rows
