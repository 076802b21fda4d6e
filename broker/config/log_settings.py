"""LogSettings: whether a broker has separate log files, and where. A part of BrokerConfig."""

from pathlib import Path

from pydantic import Field, field_validator

from keelmq.runtime.config import Config, home_path


class LogSettings(Config):
    """The log on stderr is always written."""

    isolate_log_enable: bool = Field(
        False,
        description="write the log also into <logPath>/<brokerName>_<brokerId>/broker.log, with at most 10 "
        "files of 32 MiB",
    )
    log_path: Path = Field(
        Path("~/logs/rocketmqlogs"),
        description="directory of these logs, of all brokers of a machine (ours)",
    )

    @field_validator("log_path")
    @classmethod
    def _expand_log_path(cls, path: Path) -> Path | None:
        return home_path(path)
