"""A small network of its own for each test: a bridge and one network namespace for each member.

All is inside namespaces named after this process; the host's own network is not touched. Cuts: a member
from all, two members from each other, and one way only.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Self

TOOLS = ("ip", "bridge", "tc")
OUTER_HOST = "10.231.78.1"
"""The address of the router to a network outside."""


def why_not() -> str | None:
    """The reason why namespaces cannot be used here, None when they can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2)"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    name = f"keel{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Network:
    """`with Network(3) as network:` members 0, 1, 2 have the addresses network.address(0) and so on."""

    def __init__(self, count: int) -> None:
        self._count, self._name = count, f"keel{os.getpid()}"
        self._hub = f"{self._name}hub"

    def address(self, number: int) -> str:
        return f"10.231.77.{number + 1}"

    def prefix(self, number: int) -> tuple[str, ...]:
        """In front of a command line: runs there."""
        return ("ip", "netns", "exec", self._space(number))

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def outside(self, router: int, ports: Mapping[int, str]) -> tuple[str, ...]:
        """Makes this member a router to one namespace outside, and returns what goes in front of a command
        line that runs there. All that is reached from there is OUTER_HOST, whose ports lead to these
        addresses. From inside nothing out there is reached."""
        space, there = self._space(router), f"{self._name}out"
        self._run("ip", "netns", "add", there)
        veth = ("type", "veth", "peer", "name", "e0", "netns", there)
        self._run("ip", "-n", space, "link", "add", "outer", *veth)
        self._run("ip", "-n", space, "address", "add", f"{OUTER_HOST}/24", "dev", "outer")
        self._run("ip", "-n", space, "link", "set", "outer", "up")
        self._run("ip", "-n", there, "address", "add", "10.231.78.2/24", "dev", "e0")
        self._run("ip", "-n", there, "link", "set", "e0", "up")
        inside = self.prefix(router)
        self._run(*inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for rule in (
            "add table ip nat",
            "add chain ip nat in { type nat hook prerouting priority -100 ; }",
            "add chain ip nat out { type nat hook postrouting priority 100 ; }",
            "add rule ip nat out oifname e0 masquerade",
            *(
                f"add rule ip nat in iifname outer tcp dport {port} dnat to {at}"
                for port, at in ports.items()
            ),
        ):
            self._run(*inside, "nft", rule)
        return ("ip", "netns", "exec", there)

    # ------------------------------------------------------------------ faults
    def cut(self, number: int) -> None:
        """From all others, both ways; nobody's kernel is told."""
        self._run("ip", "-n", self._hub, "link", "set", f"v{number}", "down")

    def cut_pair(self, one: int, other: int) -> None:
        for number in (one, other):
            self._run("bridge", "-n", self._hub, "link", "set", "dev", f"v{number}", "isolated", "on")

    def mute(self, number: int) -> None:
        """It hears everything and nobody hears it: its device drops what it sends."""
        drop_all = ("root", "tbf", "rate", "8bit", "burst", "1", "limit", "1")
        self._run("tc", "-n", self._space(number), "qdisc", "replace", "dev", "e0", *drop_all)

    def heal(self) -> None:
        for number in range(self._count):
            self._run("ip", "-n", self._hub, "link", "set", f"v{number}", "up")
            self._run("bridge", "-n", self._hub, "link", "set", "dev", f"v{number}", "isolated", "off")
            self._try("tc", "-n", self._space(number), "qdisc", "del", "dev", "e0", "root")

    # ------------------------------------------------------------------ building
    def _space(self, number: int) -> str:
        return f"{self._name}m{number}"

    def _build(self) -> None:
        self._run("ip", "netns", "add", self._hub)
        self._run("ip", "-n", self._hub, "link", "add", "br0", "type", "bridge")
        self._run("ip", "-n", self._hub, "link", "set", "br0", "up")
        for number in range(self._count):
            space, device = self._space(number), f"v{number}"
            self._run("ip", "netns", "add", space)
            veth = ("type", "veth", "peer", "name", "e0", "netns", space)
            self._run("ip", "-n", self._hub, "link", "add", device, *veth)
            self._run("ip", "-n", self._hub, "link", "set", device, "master", "br0", "up")
            self._run("ip", "-n", space, "address", "add", f"{self.address(number)}/24", "dev", "e0")
            self._run("ip", "-n", space, "link", "set", "e0", "up")
            self._run("ip", "-n", space, "link", "set", "lo", "up")

    def _remove(self) -> None:
        members = (self._space(number) for number in range(self._count))
        for space in (self._hub, f"{self._name}out", *members):
            self._try("ip", "netns", "del", space)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

    def _try(self, *command: str) -> None:
        subprocess.run(command, capture_output=True, check=False)
