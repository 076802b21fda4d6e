"""What an administrative request has changed, as its handler reports it to the audit log (Call.changes)."""

from collections.abc import Mapping

from pydantic import BaseModel

from keelmq.remoting.operation import Changes


def change_of(old: BaseModel | None, new: BaseModel | None) -> tuple[object, object]:
    """Returns both as JSON objects, of two objects only the members that differ; None: there was, or is,
    none."""
    before, after = _members(old), _members(new)
    if before is None or after is None:
        return before, after
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}


def settings_changed(changes: Changes, old: BaseModel, new: BaseModel, keys: Mapping[str, object]) -> None:
    """Adds the settings of these keys. Models mask their secrets themselves."""
    before, after = _members(old) or {}, _members(new) or {}
    for key in keys:
        changes[key] = before.get(key), after.get(key)


def _members(value: BaseModel | None) -> dict[str, object] | None:
    return None if value is None else value.model_dump(mode="json", by_alias=True, exclude_none=True)
