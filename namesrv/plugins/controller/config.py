"""ControllerConfig: RocketMQ's controller keys, and KeelMQ's keys for the raft port."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, SecretStr, model_validator

from keelmq.remoting.addresses import is_loopback
from keelmq.remoting.telemetry import TelemetryConfig
from keelmq.runtime.config import SECURITY_FILE, ConfigError, read_named
from keelmq.upstream.keys import CONTROLLER
from namesrv.plugins.controller.raft.api import TlsFiles

if TYPE_CHECKING:
    from namesrv.plugins.controller.raft.transport.certificates import CertificateInfo

RAFT_PORT_OFFSET = 1_000
SECRET_BYTES_MIN = 32
SECRET_HELP = (
    "set controllerRaftSecretFile to a file with the same random bytes at every controller, for example of "
    "(umask 077; head -c 32 /dev/urandom | base64 > controller.secret)"
)

LEASE_GRACE_MS = 3_000
"""GRACE_MS of broker/core/lease.py: masters rely on it."""

BROKERS_MAX = "controllerBrokersMax"
AT_RUN_TIME = frozenset(
    {
        BROKERS_MAX,
        "controllerConnectionLossGraceMs",
        "controllerConnectionProbeEnable",
        "controllerGraceMs",
        "controllerHeartBeatTimeoutDefaultMs",
        "controllerHungMasterDetectionEnable",
        "enableElectUncleanMaster",
        "notifyBrokerRoleChanged",
        "scanInactiveMasterInterval",
    }
)
"""Keys that a request (1009) changes, at all controllers at once; the others are read at start."""

Address = tuple[str, int]

_PEER = re.compile(r"^(?P<id>[^-\s]+)-(?P<host>[^\s:]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})$")


class ControllerConfig(TelemetryConfig):
    """Frozen. A RocketMQ key without effect here is accepted, so that RocketMQ's file can be used."""

    DEFAULTS: ClassVar[tuple[str, ...]] = (SECURITY_FILE, "controller.conf")
    UPSTREAM: ClassVar[frozenset[str]] = CONTROLLER

    controller_d_leger_group: str = Field(min_length=1, description="name of the controller group")
    controller_d_leger_peers: str = Field(
        min_length=1, description="request addresses of all members: n0-host:port;n1-host:port"
    )
    controller_d_leger_self_id: str = Field(min_length=1, description="this member's id in the peers")
    controller_raft_peers: str | None = Field(
        None, description="raft addresses: n0-host:port;... (default: request port + 1000)"
    )
    controller_store_path: Path | None = Field(
        None, description="directory of log, snapshots and telemetry (default ~/keelmqController)"
    )
    controller_raft_secret_file: Path | None = Field(
        None, description="file with the shared key by which members authenticate each other"
    )
    controller_raft_secret: SecretStr | None = Field(None, description="the key itself; the file is safer")
    controller_raft_tls_cert_path: Path | None = Field(
        None, description="instead of the key: mutual TLS 1.3 with this certificate, whose DNS name is the id"
    )
    controller_raft_tls_key_path: Path | None = Field(None, description="the certificate's private key")
    controller_raft_tls_trust_cert_path: Path | None = Field(
        None, description="the group's own CA: every certificate that it issued is accepted"
    )
    controller_raft_insecure: bool = Field(False, description="no key; only between loopback addresses")
    controller_raft_bootstrap: bool = Field(
        False,
        description="this group is new: start it although not every member is running. "
        "Never use it with a member that has lost its disk",
    )
    enable_elect_unclean_master: bool = Field(
        False, description="a replica outside the SyncStateSet may become master: messages can be lost"
    )
    scan_inactive_master_interval: int = Field(
        5_000, gt=0, description="ms between two scans for groups without a live master"
    )
    controller_grace_ms: int = Field(
        LEASE_GRACE_MS,
        ge=0,
        description="ms during which a new active controller presumes that brokers without a heartbeat live. "
        "Below 3000 the isolation lease is not safe, unless every broker's "
        "controllerHeartBeatTimeoutMills is as small",
    )
    controller_connection_loss_grace_ms: int = Field(
        50, ge=0, description="ms after which a broker without a connection is not active"
    )
    controller_connection_probe_enable: bool = Field(
        True,
        description="a broker whose connection closed is not active at once if its listening address refuses "
        "connections; false: after controllerConnectionLossGraceMs",
    )
    controller_heart_beat_timeout_default_ms: int = Field(
        10_000, gt=0, description="heartbeat timeout in ms of brokers that send none"
    )
    controller_hung_master_detection_enable: bool = Field(
        True,
        description="elect another master within a second if one with allAckInSyncStateSet is silent here "
        "and for its in-sync replicas; false: after controllerHeartBeatTimeoutMills",
    )
    controller_brokers_max: int = Field(
        50_000,
        gt=0,
        description="registered brokers (and cleaned groups) beyond which no new one gets an id",
    )
    notify_broker_role_changed: bool = Field(True, description="push 1008 to the replicas after an election")
    controller_thread_pool_nums: int = Field(16, ge=1, description="without effect: one event loop")
    controller_request_thread_pool_queue_capacity: int = Field(50_000, ge=1, description="without effect")
    elect_master_max_retry_count: int = Field(3, ge=1, description="without effect: retried until it works")
    mapped_file_size: int = Field(1 << 30, ge=1, description="without effect: the log has snapshots")
    process_read_event: bool = Field(True, description="without effect: reads are always fresh")

    @model_validator(mode="after")
    def _together(self) -> Self:
        peers, raft = self.request_addresses, self.raft_addresses
        if self.controller_d_leger_self_id not in peers:
            raise ValueError(
                f"controllerDLegerSelfId {self.controller_d_leger_self_id!r} is not one of the ids in "
                f"controllerDLegerPeers: {', '.join(sorted(peers))}"
            )
        if peers.keys() != raft.keys():
            raise ValueError("controllerRaftPeers and controllerDLegerPeers must have the same ids")
        if self.controller_raft_secret is not None and self.controller_raft_secret_file is not None:
            raise ValueError("set controllerRaftSecretFile or controllerRaftSecret, not both")
        self._check_certificate_paths()
        self._check_secret(raft)
        return self

    def _check_certificate_paths(self) -> None:
        paths = {
            "controllerRaftTlsCertPath": self.controller_raft_tls_cert_path,
            "controllerRaftTlsKeyPath": self.controller_raft_tls_key_path,
            "controllerRaftTlsTrustCertPath": self.controller_raft_tls_trust_cert_path,
        }
        lacking = [key for key, path in paths.items() if path is None]
        if 0 < len(lacking) < len(paths):
            raise ValueError(f"certificates of the raft port: {' and '.join(lacking)} must be set as well")
        if not lacking and (self.controller_raft_secret or self.controller_raft_secret_file):
            raise ValueError(
                "set a key (controllerRaftSecretFile) or certificates (controllerRaftTls...), not both"
            )

    def _check_secret(self, raft: dict[str, Address]) -> None:
        if self.controller_raft_secret is not None or self.controller_raft_secret_file is not None:
            return
        if self.tls_files is not None:
            return
        if not all(is_loopback(host) for host, _port in raft.values()):
            raise ValueError(
                f"controllers on different hosts need a shared key on their raft port: {SECRET_HELP}, "
                "or certificates (controllerRaftTlsCertPath)"
            )
        if not self.controller_raft_insecure and len(raft) > 1:
            raise ValueError(
                f"no key for the raft port: {SECRET_HELP}, or, on one host, controllerRaftInsecure=true"
            )

    def warnings(self) -> list[str]:
        """Returns a text for each setting that is valid, but probably a mistake (#9082)."""
        lines = list[str]()
        local = [
            f"{each}-{host}" for each, (host, _port) in self.request_addresses.items() if is_loopback(host)
        ]
        if local:
            lines.append(
                f"controllerDLegerPeers names {', '.join(local)}: brokers and tools on other hosts receive "
                "these addresses as well, and cannot reach them"
            )
        if self.controller_grace_ms < LEASE_GRACE_MS:
            lines.append(
                f"controllerGraceMs={self.controller_grace_ms} is below {LEASE_GRACE_MS}: a master that is "
                "cut off may acknowledge after another one was elected (isolationLeaseEnable), unless every "
                "broker's controllerHeartBeatTimeoutMills is as small"
            )
        return lines

    @property
    def request_addresses(self) -> dict[str, Address]:
        """Member id -> host and port for requests (controllerDLegerPeers)."""
        return parse_peers("controllerDLegerPeers", self.controller_d_leger_peers)

    @property
    def raft_addresses(self) -> dict[str, Address]:
        """Member id -> host and port for raft: controllerRaftPeers, or request port + RAFT_PORT_OFFSET."""
        if self.controller_raft_peers is not None:
            return parse_peers("controllerRaftPeers", self.controller_raft_peers)
        addresses = self.request_addresses
        return {each: (host, port + RAFT_PORT_OFFSET) for each, (host, port) in addresses.items()}

    @property
    def root(self) -> Path:
        """Directory of everything that this controller stores."""
        return self.controller_store_path or Path.home() / "keelmqController"

    @property
    def state_path(self) -> Path:
        """Base of the name of the program's own state directory: one for each member."""
        return self.root / f"controller-{self.controller_d_leger_self_id}"

    @property
    def directory(self) -> Path:
        """Directory of the raft log of this member."""
        return self.root / f"raft-{self.controller_d_leger_self_id}"

    @property
    def telemetry_directory(self) -> Path:
        """Directory of the telemetry files."""
        return self.root / "telemetry"

    @property
    def tls_files(self) -> TlsFiles | None:
        """The PEM files of the raft port; None: no certificates are configured."""
        certificate, key = self.controller_raft_tls_cert_path, self.controller_raft_tls_key_path
        trust = self.controller_raft_tls_trust_cert_path
        if certificate is None or key is None or trust is None:
            return None
        return TlsFiles(certificate, key, trust)

    @property
    def key_files(self) -> tuple[Path, ...]:
        """Files of the raft port that only this program should be able to read."""
        paths = (self.controller_raft_secret_file, self.controller_raft_tls_key_path)
        return tuple(path for path in paths if path is not None)

    def read_certificates(self) -> "CertificateInfo | None":
        """Returns the raft port's certificate; None: none is configured. Raises ConfigError: a file is
        invalid."""
        from namesrv.plugins.controller.raft.transport.certificates import read_certificates

        files = self.tls_files
        return None if files is None else read_certificates(files, self.controller_d_leger_self_id).info

    def read_secret(self) -> bytes | None:
        """Returns the shared key; None: none is configured. Raises ConfigError: unreadable, or too short."""
        if self.controller_raft_secret_file is not None:
            path = self.controller_raft_secret_file
            try:
                secret = read_named(path).strip()
            except OSError as error:
                raise ConfigError(f"controllerRaftSecretFile {path}: {error.strerror}") from error
        elif self.controller_raft_secret is not None:
            secret = self.controller_raft_secret.get_secret_value().encode()
        else:
            return None
        if len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(f"the raft key has {len(secret)} bytes, {SECRET_BYTES_MIN} are needed")
        return secret


def parse_peers(key: str, text: str) -> dict[str, Address]:
    """Parses "n0-host:9878;n1-host:9878" to {"n0": ("host", 9878), ...}. Raises ValueError."""
    peers: dict[str, Address] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        match = _PEER.match(part)
        if match is None or not 0 < int(match["port"]) <= 65_535:
            raise ValueError(f"{key}: {part!r} is not id-host:port (for example n0-10.0.0.1:9878)")
        if match["id"] in peers:
            raise ValueError(f"{key}: id {match['id']!r} occurs twice")
        peers[match["id"]] = (match["host"].strip("[]"), int(match["port"]))
    if len(set(peers.values())) != len(peers):
        raise ValueError(f"{key}: two members have the same address")
    if not peers:
        raise ValueError(f"{key}: it names no member")
    return peers
