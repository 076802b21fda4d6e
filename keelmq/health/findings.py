"""The doctor's findings, as lines or as JSON. Pure."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

CHECKS = {
    "config.loads": "the file loads as its program would load it, and its own rules hold",
    "config.group": "brokers of one group agree on settings; one master, distinct ids, enough replicas",
    "config.controllers": "controllers have the same members, group and key, and distinct ids",
    "config.addresses": "no address that other machines use is 127.0.0.1; address lists are complete",
    "config.listeners": "name servers have the brokers' listeners, and no two brokers announce one address",
    "config.timeouts": "heartbeats, scans and replication timeouts fit together",
    "config.secret": "the key or the certificates of the raft port exist, are valid and private",
    "config.tls": "the files of the tls.* keys load, are private, and do not expire soon",
    "config.security": "ports that other machines reach need authentication, and secrets are private",
    "config.passwords": "no password is short or commonly used, and no user has the secret of the members",
    "config.container": "the brokers of a container load, also those added by requests, and share nothing",
    "machine.ports": "the ports are free, or in use by the program that they are for",
    "machine.directories": "directories have free space, and files that this broker can start with",
    "machine.quota": "the disk quota, if there is one, deletes no file right after the start",
    "machine.open-files": "the limit of open files is high enough (one per connection)",
    "machine.compiled": "the data path's modules are compiled; interpreted ones need more CPU time",
    "machine.clock": "clocks of the machines agree: they set the times of messages and telemetry",
    "namesrv.reachable": "each name server responds",
    "namesrv.agree": "name servers have the same brokers, topics and settings",
    "users.agree": "name servers and the masters of all groups have the same users and ACLs",
    "controller.reachable": "each controller responds, and a majority is reachable",
    "controller.leader": "one controller is the leader, and all agree on it",
    "controller.raft": "each member runs, is connected and keeps up with the leader",
    "broker.reachable": "each broker that the name servers list responds",
    "broker.disk": "the disks of the brokers take writes, and have free space",
    "broker.damage": "no record of a broker's log is damaged",
    "broker.settings": "running brokers of one group agree on required settings, and list all controllers",
    "group.master": "each group has a live master",
    "group.in-sync": "enough replicas are in the SyncStateSet, all are alive",
    "broker.writable": "each master accepts messages, and name servers give its topics write permission",
    "consumers.agree": "members of a consumer group have the same subscriptions, and all topics are consumed",
    "broker.container": "containers run all their brokers and processes",
    "controller.settings": "the controllers elect no replica that lacks acknowledged messages",
    "group.epochs": "replicas agree on where each masterEpoch begins in their logs",
    "group.routes": "name servers return to clients the master that the controllers elected",
}


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


class Finding(msgspec.Struct, frozen=True):
    """`check`: a key of CHECKS. `subject`: the file, address or group. `next_step`: what to do about it.
    `command`: the line to paste for that, empty if it is not one of our programs'."""

    level: Level
    check: str
    subject: str
    text: str
    next_step: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        assert self.check in CHECKS, self.check
        assert self.level is Level.OK or self.next_step, f"{self.check}: say what to do next"

    def line(self) -> str:
        """Returns the finding as one line: level, subject, text, next step."""
        step = f"; next: {self.next_step}" if self.next_step else ""
        step += f": {self.command}" if self.command else ""
        return " ".join(f"{self.level:<8} {self.subject}: {self.text}{step}".split("\n"))


def ok(check: str, subject: str, text: str) -> Finding:
    """Returns a finding of level OK. `check`: a key of CHECKS."""
    return Finding(Level.OK, check, subject, text)


def warning(check: str, subject: str, text: str, next_step: str, command: str = "") -> Finding:
    """Returns a finding of level WARNING. `next_step` must not be empty."""
    return Finding(Level.WARNING, check, subject, text, next_step, command)


def failed(check: str, subject: str, text: str, next_step: str, command: str = "") -> Finding:
    """Returns a finding of level FAILED, which makes the doctor's exit code 1. `next_step` must not be
    empty."""
    return Finding(Level.FAILED, check, subject, text, next_step, command)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Joins findings that differ only in their subject, at the place of the first one."""
    subjects: dict[Finding, list[str]] = {}
    for finding in findings:
        subjects.setdefault(replace(finding, subject=""), []).append(finding.subject)
    return [replace(finding, subject=", ".join(dict.fromkeys(names))) for finding, names in subjects.items()]


def plural(count: int, noun: str) -> str:
    """Returns "1 broker" or "2 brokers". Adds an "s": only for nouns that form their plural this way."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def count(findings: Sequence[Finding], level: Level) -> int:
    """Returns the number of findings of this level."""
    return sum(finding.level is level for finding in findings)


def summary(findings: Sequence[Finding], took_s: float) -> str:
    """Returns the last line of the output: counts by level, and the duration in seconds."""
    warnings = plural(count(findings, Level.WARNING), "warning")
    return (
        f"doctor: {count(findings, Level.FAILED)} failed, {warnings}, "
        f"{count(findings, Level.OK)} ok in {took_s:.1f} s"
    )


def as_value(findings: Sequence[Finding], took_s: float) -> dict[str, object]:
    """Returns the value that --json prints."""
    return {
        "ok": not count(findings, Level.FAILED),
        "failed": count(findings, Level.FAILED),
        "warnings": count(findings, Level.WARNING),
        "tookMs": round(took_s * 1000),
        "findings": [
            {
                "level": finding.level.value.lower(),
                "check": finding.check,
                "subject": finding.subject,
                "text": finding.text,
                "next": finding.next_step or None,
                "command": finding.command or None,
            }
            for finding in findings
        ],
    }
