"""LiveConfig: the controller's settings while it runs: its file's, with the replicated ones over them.

A changed setting (1009) is part of the replicated state, so every controller has it, and keeps it over
restarts and files. Why over the file, and the environment, too: docs/adr/0008.
"""

import logging
from collections.abc import Callable, Mapping

from namesrv.plugins.controller.config import AT_RUN_TIME, ControllerConfig
from namesrv.plugins.controller.core.state import State
from remoting.codes import ResponseCode
from remoting.config import ConfigError, parse_settings, with_settings
from remoting.operation import CommandError

logger = logging.getLogger(__name__)

BLACK_LIST = frozenset(
    {
        "configBlackList",
        "configStorePath",
        "controllerRaftInsecure",
        "controllerRaftSecret",
        "controllerRaftSecretFile",
        "controllerRaftTlsCertPath",
        "controllerRaftTlsKeyPath",
        "controllerRaftTlsTrustCertPath",
        "controllerStorePath",
        "rocketmqHome",
    }
)
"""Never changed by a request: a path or a key of the caller's choice is a way in (#6733, #7584)."""
REPLICATED = "the replicated settings"


class LiveConfig:
    """Lives in the event loop. `fault`: why some replicated settings are not in force here; None: all are.
    `replicated`: the keys of those that are."""

    def __init__(self, file: ControllerConfig, state: Callable[[], State]) -> None:
        self._file, self._state = file, state
        self._seen: Mapping[str, str] | None = None
        self._current = file
        self.fault: str | None = None
        self.replicated: frozenset[str] = frozenset()

    @property
    def current(self) -> ControllerConfig:
        """As it is now. A frozen value: keep it only while one request is served."""
        settings = self._state().settings
        if settings is not self._seen:
            self._seen = settings
            self._refresh(settings)
        return self._current

    def _refresh(self, settings: Mapping[str, str]) -> None:
        """One by one: a setting that does not go with this file must not cost the others."""
        self._current, faults, in_force = self._file, list[str](), set[str]()
        for key, value in sorted(settings.items()):
            try:
                self._current = with_settings(self._current, {key: value}, REPLICATED)
                in_force.add(key)
            except ConfigError as error:
                faults.append(str(error))
        self.fault, self.replicated = "; ".join(faults) or None, frozenset(in_force)
        if self.fault is not None:
            logger.error("this controller goes on as its file says: %s", self.fault)
        for line in self._current.warnings():
            if line not in self._file.warnings():  # those were told at the start
                logger.warning("%s", line)

    def check_changes(self, body: bytes) -> dict[str, str | None]:
        """key=value lines as replicated changes; "key=" gives the key back to the file. Raises CommandError
        unless all of them, together with the settings in force, are what a file might hold."""
        try:
            settings = parse_settings(body.decode(), "the request")
        except (UnicodeDecodeError, ConfigError) as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        if BLACK_LIST & settings.keys():
            raise CommandError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        changes = {key: value or None for key, value in settings.items()}
        self.check({**self._state().settings, **changes})
        return changes

    def check(self, settings: Mapping[str, str | None]) -> None:
        """Raises CommandError: a key that no controller knows or that is read at start, or a bad value."""
        known = {field.alias for field in ControllerConfig.model_fields.values()}
        for key in settings:
            if key in known and key not in AT_RUN_TIME:
                remark = f"{key} is read at start only: change it in the configuration files and restart"
                raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
            if key not in known and settings[key] is None:
                raise CommandError(ResponseCode.SYSTEM_ERROR, f"unknown key {key!r} in the request")
        try:
            with_settings(
                self._file,
                {key: value for key, value in settings.items() if value is not None},
                "the request",
            )
        except ConfigError as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, str(error)) from error
