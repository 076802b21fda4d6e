"""The configuration files of a new cluster of 1, 3 or 3xN machines. No input or output.

Every three machines hold the replicas of one broker group. The first three, or the only one, have a name
server with a controller as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keelmq.remoting.address_text import join_address

REPLICAS = 3
MACHINES_MAX = 26 * REPLICAS
"""One letter names a group."""
NAMESRV_PORT, CONTROLLER_PORT, BROKER_PORT, PROXY_PORT = 9876, 9878, 10911, 8081
SETTINGS, STATE = "/etc/keelmq", "/var/lib/keelmq"
RAFT_KEY = "raft.key"
SECURITY = "security"
"""The directory of certificates and secrets below SETTINGS, if security is on."""
CONSOLE_CREDENTIALS = "console.yml"
"""In SECURITY: the user with which keelmq-console reads."""
NAMESRV_UNIT, BROKER_UNIT = "keelmq-namesrv", "keelmq-broker"


@dataclass(frozen=True, slots=True)
class Machine:
    """`controller_id`: of the controller in its name server; None: no name server here."""

    host: str
    group: str
    controller_id: str | None

    @property
    def units(self) -> tuple[str, ...]:
        """The units to enable, in the order of their start."""
        return (BROKER_UNIT,) if self.controller_id is None else (NAMESRV_UNIT, BROKER_UNIT)

    @property
    def purpose(self) -> str:
        """What runs there, for people."""
        broker = f"a broker of {self.group}"
        return broker if self.controller_id is None else f"a name server with a controller, and {broker}"


def machines_of(hosts: Sequence[str]) -> tuple[Machine, ...]:
    """Raises ValueError, for the operator: no cluster can be made of so many machines."""
    count = len(hosts)
    if len(set(hosts)) < count:
        raise ValueError("a machine is given twice")
    if count != 1 and (count % REPLICAS or not 0 < count <= MACHINES_MAX):
        raise ValueError(
            f"{count} machines: give 1 for a trial, or {REPLICAS} for each broker group, "
            f"{MACHINES_MAX} at most"
        )
    return tuple(
        Machine(host, f"broker-{chr(ord('a') + at // REPLICAS)}", f"n{at}" if at < REPLICAS else None)
        for at, host in enumerate(hosts)
    )


def name_servers(machines: Iterable[Machine]) -> str:
    """Returns namesrvAddr."""
    return _addresses(machines, NAMESRV_PORT)


def settings_of(
    machine: Machine, machines: Sequence[Machine], cluster: str, *, is_secure: bool = False
) -> Mapping[str, str]:
    """Returns name -> text of the files in /etc/keelmq, without keys."""
    found = {
        "broker.conf": _broker(machine, machines, cluster),
        "console.env": ["# Of keelmq-console.service.", f'NAMESRV_ADDR="{name_servers(machines)}"'],
        "proxy.conf": [
            "# Of keelmq-proxy.service.",
            f"namesrvAddr={name_servers(machines)}",
            f"grpcServerPort={PROXY_PORT}",
        ],
    }
    if machine.controller_id is not None:
        found["namesrv.conf"] = _namesrv(machine, machines)
        if not is_secure:
            found["namesrv.conf"] += [
                "# The same on every machine that has a controller.",
                f"controllerRaftSecretFile={SETTINGS}/{RAFT_KEY}",
            ]
    if is_secure:
        for name in found.keys() - {"console.env"}:
            found[name] += [
                "# TLS, signed requests and ACLs, with the files of this directory: docs/security.md.",
                f"securityPath={SETTINGS}/{SECURITY}",
            ]
        found["console.env"].append(f'KEELMQ_CREDENTIALS="{SETTINGS}/{SECURITY}/{CONSOLE_CREDENTIALS}"')
    return {name: "\n".join([*lines, ""]) for name, lines in found.items()}


def _namesrv(machine: Machine, machines: Sequence[Machine]) -> list[str]:
    peers = (
        f"{each.controller_id}-{join_address(each.host, CONTROLLER_PORT)}"
        for each in machines
        if each.controller_id is not None
    )
    return [
        "# A name server with a controller: docs/machines.md, docs/configuration.md.",
        f"listenPort={NAMESRV_PORT}",
        f"kvConfigPath={STATE}/kvConfig.json",
        "# This file is read-only for the program: changes at run time are saved there, and override it.",
        f"configStorePath={STATE}/namesrv.properties",
        "# After a fail-over RocketMQ's clients can send to a slave, which forwards: docs/durability.md.",
        "routeAliasesEnable=true",
        "enableControllerInNamesrv=true",
        "controllerDLegerGroup=keelmq",
        f"controllerDLegerSelfId={machine.controller_id}",
        f"controllerDLegerPeers={';'.join(peers)}",
        f"controllerStorePath={STATE}/controller",
    ]


def _broker(machine: Machine, machines: Sequence[Machine], cluster: str) -> list[str]:
    controllers = [each for each in machines if each.controller_id is not None]
    durability = [
        "# An acknowledged message is on every member of the SyncStateSet.",
        "allAckInSyncStateSet=true",
    ]
    if len(machines) > 1:
        durability[0] = "# An acknowledged message is on every member of the SyncStateSet, two at least."
        durability.append("minInSyncReplicas=2")
    return [
        "# A broker: docs/machines.md, docs/configuration.md.",
        f"brokerClusterName={cluster}",
        f"brokerName={machine.group}",
        "# The controllers assign the id; .broker.meta in the store keeps it.",
        "brokerId=-1",
        "# What clients and replicas connect to.",
        f"brokerIP1={machine.host}",
        f"listenPort={BROKER_PORT}",
        f"haListenPort={BROKER_PORT + 1}",
        f"namesrvAddr={name_servers(machines)}",
        "enableControllerMode=true",
        f"controllerAddr={_addresses(controllers, CONTROLLER_PORT)}",
        f"storePathRootDir={STATE}/store",
        "# This file is read-only for the program: changes at run time are saved there, and override it.",
        f"configStorePath={STATE}/broker.properties",
        *durability,
    ]


def _addresses(machines: Iterable[Machine], port: int) -> str:
    return ";".join(join_address(each.host, port) for each in machines if each.controller_id is not None)
