"""ConfigStore: reads and changes the settings of a running program (25 and 26, 318 and 319).

A change is written into the -c file, line by line, so comments and other programs' keys stay. If
configStorePath is set, it is written there instead, and overrides the -c file at the next start. A change
that cannot be stored is not applied.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from pydantic import Field

from keelmq.remoting.changes import settings_changed
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Changes, CommandError, Operation, OperationTable
from keelmq.runtime.config import (
    ENVIRON_PREFIX,
    Config,
    ConfigError,
    load_config,
    parse_request,
    parse_settings,
    setting_sources,
    with_settings,
)
from keelmq.runtime.durable_file import replace_file

log = logging.getLogger(__name__)

IN_MEMORY_ONLY = "changed until the next start: there is no -c file and no configStorePath to keep it in"


class StoredConfig(Config):
    """Settings, some of which can change while the program runs."""

    AT_RUN_TIME: ClassVar[frozenset[str]] = frozenset()
    """Keys that a request can change; the others are read only at the start."""
    BLACK_LIST: ClassVar[frozenset[str]] = frozenset({"configBlackList", "configStorePath", "rocketmqHome"})
    """Keys that no request may change, whatever configBlackList says: with a path of the caller's choice the
    server would write any file (#6733, #7584)."""

    config_store_path: Path | None = Field(
        None, description="file for changes made at run time, read over the -c file (default: the -c file)"
    )
    config_black_list: str = Field(
        "configBlackList;configStorePath", description="keys that requests must not change"
    )


class Settings(msgspec.Struct, frozen=True):
    """The settings of one program in /v1/config. `update`: the operation of `table` that applies key=value
    lines, all of them or none. `sources`: key -> origin of its value, for the keys that are set."""

    program: str
    current: Callable[[], Config]
    at_run_time: frozenset[str]
    sources: Callable[[], Mapping[str, str]]
    table: OperationTable
    update: Operation[Any, Any]


S = TypeVar("S", bound=StoredConfig)


@dataclass(frozen=True)
class ConfigSources:
    """The sources of a configuration: the -c file, the environment, and --set."""

    path: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)  # may have secrets in it
    overrides: Mapping[str, str] = field(default_factory=dict)


class ConfigStore(Generic[S]):
    """The settings of a running program. A change replaces `current` and then calls `on_change`. `sources`:
    the source of each key that is set."""

    def __init__(
        self,
        config: S,
        *,
        on_change: Callable[[], None],
        path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.current = config
        self.version = 0
        self._on_change = on_change
        self._path = store_path(config, path)
        self.sources = _sources(config, path, environ or {}, overrides or {})
        self._environ, self._overrides = environ or {}, overrides or {}
        self._writing = asyncio.Lock()

    async def update(self, body: bytes, changes: Changes | None = None) -> str | None:
        """Applies all of the key=value lines, or none: CommandError. Returns a remark for the caller, or
        None. changes: gets old and new values."""
        try:
            settings = parse_request(body)
        except ConfigError as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        self._check_allowed(settings)
        if not settings:
            return None
        async with self._writing:
            try:
                config = with_settings(self.current, settings, "the request")
            except ConfigError as error:
                raise CommandError(ResponseCode.SYSTEM_ERROR, str(error)) from error
            if self._path is not None:
                await self._keep(self._path, settings)
            if changes is not None:
                settings_changed(changes, self.current, config, settings)
            self.current = config
            self.version += 1
            where = "" if self._path is None else f", kept in {self._path}"
            self.sources |= dict.fromkeys(settings, f"changed at run time{where}")
        log.info("settings changed: %s", ", ".join(f"{key}={value}" for key, value in settings.items()))
        self._on_change()
        return IN_MEMORY_ONLY if self._path is None else None

    def _check_allowed(self, settings: Mapping[str, str]) -> None:
        blocked = self.current.BLACK_LIST | {key.strip() for key in self.current.config_black_list.split(";")}
        if blocked & settings.keys():
            raise CommandError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        known = {field.alias for field in type(self.current).model_fields.values()}
        for key in settings:
            if key in known and key not in self.current.AT_RUN_TIME:
                remark = f"{key} is read at start only: change it in the configuration file and restart"
                raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
            if key in self._overrides or ENVIRON_PREFIX + key in self._environ:
                remark = f"{key} is set by --set or by the environment, which would win at the next start"
                raise CommandError(ResponseCode.SYSTEM_ERROR, remark)

    async def _keep(self, path: Path, settings: Mapping[str, str]) -> None:
        try:
            await asyncio.to_thread(_rewrite, path, settings)
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            remark = f"the change cannot be stored in {path}: {reason}; nothing was changed"
            log.error("%s", remark)
            help_ = " (configStorePath can name another file)"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark + help_) from error


def store_path(config: StoredConfig, path: Path | None) -> Path | None:
    """Returns configStorePath, or the -c file if it is not set."""
    return path if config.config_store_path is None else config.config_store_path.expanduser()


def with_stored(config: S, path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> S:
    """Returns `config` with the changes that an earlier run stored in configStorePath. Raises ConfigError."""
    stored = store_path(config, path)
    try:
        if stored is None or stored == path or not stored.exists():
            return config
    except OSError as error:
        raise ConfigError(f"configStorePath: cannot use {stored}: {error.strerror}") from error
    load_config(type(config), path=stored, environ={}, overrides={})  # names file and line of a bad key
    settings = {
        key: value
        for key, value in parse_settings(stored.read_text(encoding="utf-8"), str(stored)).items()
        if key not in overrides and ENVIRON_PREFIX + key not in environ
    }
    return with_settings(config, settings, str(stored))


def _sources(
    config: StoredConfig, path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> dict[str, str]:
    """Returns the source of each key, by the rules of load_config() and with_stored()."""
    found = setting_sources(
        type(config),
        path=path if path is not None and path.exists() else None,
        environ=environ,
        overrides=overrides,
    )
    stored = store_path(config, path)
    if stored is not None and stored != path and stored.exists():
        given = {key for key in found if key in overrides or ENVIRON_PREFIX + key in environ}
        kept = setting_sources(path=stored, environ={}, overrides={})
        found |= {key: source for key, source in kept.items() if key not in given}
    return found


def rewritten(text: str, settings: Mapping[str, str]) -> str:
    """Returns key=value lines with some values changed; new keys come last."""
    left = dict(settings)
    lines = []
    for line in text.splitlines():
        key = line.partition("=")[0].strip()
        lines.append(f"{key}={settings[key]}" if key in settings else line)
        left.pop(key, None)
    return "".join(f"{line}\n" for line in [*lines, *(f"{key}={value}" for key, value in left.items())])


def _rewrite(path: Path, settings: Mapping[str, str]) -> None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    replace_file(path, rewritten(text, settings).encode())
