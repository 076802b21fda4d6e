"""LiveConfig: the settings in force: the configuration file, overridden by the replicated settings.

A changed setting (1009) is part of the replicated state, so every controller has it, even after a restart.
docs/adr/0008 explains why it overrides the file and the environment.
"""

import logging
from collections.abc import Callable, Mapping

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError
from keelmq.runtime.config import ConfigError, parse_request, with_settings
from namesrv.plugins.controller.config import AT_RUN_TIME, ControllerConfig
from namesrv.plugins.controller.core.state import State

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
"""No request changes these: a sender that can choose a path or a secret can attack (#6733, #7584)."""
REPLICATED = "the replicated settings"


class LiveConfig:
    """Event loop only. `fault`: why some replicated settings are not in force here; None: all are in force.
    `replicated`: the keys of the replicated settings in force."""

    def __init__(self, file: ControllerConfig, state: Callable[[], State]) -> None:
        self._file, self._state = file, state
        self._seen: Mapping[str, str] | None = None
        self._current = file
        self.fault: str | None = None
        self.replicated: frozenset[str] = frozenset()

    @property
    def current(self) -> ControllerConfig:
        """The settings in force now, a frozen value. Read it again for each request."""
        self._read()
        return self._current

    def _read(self) -> None:
        settings = self._state().settings
        if settings is not self._seen:
            self._seen = settings
            self._refresh(settings)

    def _refresh(self, settings: Mapping[str, str]) -> None:
        """Applies the settings one by one, so that one that contradicts this file does not block the
        others."""
        self._current, faults, in_force = self._file, list[str](), set[str]()
        for key, value in sorted(settings.items()):
            try:
                self._current = with_settings(self._current, {key: value}, REPLICATED)
                in_force.add(key)
            except ConfigError as error:
                faults.append(str(error))
        self.fault, self.replicated = "; ".join(faults) or None, frozenset(in_force)
        if self.fault is not None:
            logger.error("some replicated settings are not in force here: %s", self.fault)
        for line in self._current.warnings():
            if line not in self._file.warnings():  # these were logged at the start
                logger.warning("%s", line)

    def check_changes(self, body: bytes) -> dict[str, str | None]:
        """Parses key=value lines; "key=" resets a key to the file's value (None), also one that only a newer
        release knows. Settings that are not in force here block no change.

        Raises CommandError: a line, key or value is invalid, or contradicts the settings in force.
        """
        try:
            settings = parse_request(body)
        except ConfigError as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        if BLACK_LIST & settings.keys():
            raise CommandError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        changes = {key: value or None for key, value in settings.items()}
        self._read()
        before = self._state().settings
        kept = {key: value for key, value in before.items() if key in self.replicated and key not in changes}
        self.check(kept | {key: value for key, value in changes.items() if value or key not in before})
        return changes

    def check(self, settings: Mapping[str, str | None]) -> None:
        """Raises CommandError: a key is unknown or read only at the start, or a value is invalid."""
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
