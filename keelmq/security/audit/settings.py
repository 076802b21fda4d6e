"""AuditConfig: the settings of the audit log, for every program."""

from pathlib import Path

from pydantic import Field, field_validator

from keelmq.runtime.config import Config, home_path


class AuditConfig(Config):
    """Base of the configuration of every program with ports. No request changes these."""

    audit_enable: bool = Field(
        True, description="record requests that administer, and refused ones, in files of JSON lines (ours)"
    )
    audit_path: Path | None = Field(
        None,
        description="directory of the audit log; programs may share one, since files have their names "
        "and ports (default: audit/ in storePathRootDir, beside kvConfigPath, or in controllerStorePath)",
    )
    audit_file_bytes: int = Field(
        16_777_216, ge=65_536, description="bytes after which a new file of the audit log begins"
    )
    audit_files: int = Field(
        10, ge=2, description="files of the audit log that are kept; as many again of refused requests"
    )

    @field_validator("audit_path", mode="before")
    @classmethod
    def _empty_audit_path(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("audit_path")
    @classmethod
    def _expand_audit_path(cls, path: Path | None) -> Path | None:
        return home_path(path)
