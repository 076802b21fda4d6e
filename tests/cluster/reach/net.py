"""Zones with pods, a router that translates addresses, and a network outside, in network namespaces.

Each pod is a host with a cable to the bridge of its zone; these bridges are linked to a core bridge.
Outside there is one address, the router's, and each of its ports leads to one pod or, in turn, to several, as
those of Kubernetes' NodePort Services. A port without pods refuses connections.

The hosts `inside` and `outside` are for clients. What one of them sends to an address of the other side is
counted and dropped.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence

from cli.lab.chaos.net import NETWORK, Net

OUTER_NETWORK = "10.78.0"
OUTER_HOST = f"{OUTER_NETWORK}.1"
INSIDE, OUTSIDE, ROUTER = "inside", "outside", "router"
WRONG_SIDE = {INSIDE: f"{OUTER_NETWORK}.0/24", OUTSIDE: f"{NETWORK}.0/24"}
"""The addresses that clients of a side must never use."""


class ZonedNet:
    """Around a Net that has been entered. `zones`: their names, of 8 characters at most."""

    def __init__(self, net: Net, zones: Sequence[str]) -> None:
        self.net = net
        for zone in zones:
            _ip("link", "add", zone, "type", "bridge")
            _ip("link", "add", f"up-{zone}", "type", "veth", "peer", "name", f"to-{zone}")
            _ip("link", "set", f"up-{zone}", "master", "br0", "up")
            _ip("link", "set", f"to-{zone}", "master", zone, "up")
            _ip("link", "set", zone, "up")
        net.add(INSIDE)
        self._connect_outside()
        for side, wrong in WRONG_SIDE.items():
            self._count_wrong(side, wrong)

    def place(self, host: str, zone: str) -> None:
        """Connects a host to the bridge of a zone."""
        _ip("link", "set", self.net.cable(host), "master", zone)

    def cut(self, zone: str) -> None:
        """Disconnects a zone from everything else; inside of it all goes on."""
        _ip("link", "set", f"up-{zone}", "down")

    def heal(self, zone: str) -> None:
        """Connects a zone again after cut()."""
        _ip("link", "set", f"up-{zone}", "up")

    def translate(self, ports: Mapping[int, tuple[Sequence[str], int]], reset: Sequence[str]) -> None:
        """Replaces all translations: {outer port: (addresses, inner port)}. Connections that exist go on to
        where they lead, but those to addresses in `reset` are reset with their next packet."""
        rules = ["flush chain ip nat in", "flush chain ip nat through"]
        refuse = "meta l4proto tcp reject with tcp reset"
        rules += [f"add rule ip nat through ip daddr {each} {refuse}" for each in reset]
        for port, (addresses, inner) in ports.items():
            if addresses:
                rule = f"add rule ip nat in iifname outer tcp dport {port} dnat to"
                turns = ", ".join(f"{turn} : {address}" for turn, address in enumerate(addresses))
                rules.append(f"{rule} numgen inc mod {len(addresses)} map {{ {turns} }}:{inner}")
        _nft(ROUTER, *rules)

    def wrong_packets(self, side: str) -> int:
        """Returns how many packets of the clients of a side went to addresses of the other one."""
        done = _nft_text(side, "--json", "list", "chain", "ip", "sides", "out")
        rules = [each["rule"]["expr"] for each in json.loads(done)["nftables"] if "rule" in each]
        return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)

    def _connect_outside(self) -> None:
        self.net.add(ROUTER)
        _ip("netns", "add", OUTSIDE)
        cable = ("type", "veth", "peer", "name", "eth0", "netns", OUTSIDE)
        _ip("-n", ROUTER, "link", "add", "outer", *cable)
        _ip("-n", ROUTER, "addr", "add", f"{OUTER_HOST}/24", "dev", "outer")
        _ip("-n", ROUTER, "link", "set", "outer", "up")
        _ip("-n", OUTSIDE, "addr", "add", f"{OUTER_NETWORK}.2/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", OUTSIDE, "link", "set", device, "up")
        _ip("-n", OUTSIDE, "route", "add", "default", "via", OUTER_HOST)
        _ip("-n", INSIDE, "route", "add", "default", "via", self.net.address(ROUTER))
        _run(*self.net.command(ROUTER), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        _nft(
            ROUTER,
            "add table ip nat",
            "add chain ip nat in { type nat hook prerouting priority -100 ; }",
            "add chain ip nat out { type nat hook postrouting priority 100 ; }",
            "add rule ip nat out oifname eth0 masquerade",
            "add chain ip nat through { type filter hook forward priority 0 ; }",
        )

    def _count_wrong(self, side: str, wrong: str) -> None:
        _nft(
            side,
            "add table ip sides",
            "add chain ip sides out { type filter hook output priority 0 ; }",
            f"add rule ip sides out ip daddr {wrong} counter drop",
        )


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _nft(host: str, *lines: str) -> None:
    """All lines at once, or none of them."""
    _nft_text(host, "-f", "-", given="\n".join(lines) + "\n")


def _nft_text(host: str, *arguments: str, given: str = "") -> str:
    return _run("ip", "netns", "exec", host, "nft", *arguments, given=given)


def _run(*command: str, given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
