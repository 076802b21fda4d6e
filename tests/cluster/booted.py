"""Machines that run systemd, each in namespaces of its own, from the host's /usr. They cannot write kernel
settings, and start no unit of the host."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from tests.cluster.test_machines import until

SCRIPT = Path(__file__).with_name("booted.sh")
SYSTEMD = Path("/lib/systemd/systemd")
UNITS = Path("/usr/lib/systemd/system")
PYTHON = Path("/opt/python")
"""Where a machine has this Python: ProtectHome hides the homes, in which it may be installed."""
HIDDEN = (Path("/root"), Path("/home"), Path("/run"))
STOP_S = 20


def why_not() -> str | None:
    """Returns why no systemd can be booted here; None: it can."""
    if os.geteuid() != 0:
        return "only root boots a machine"
    missing = [
        tool for tool in ("nsenter", "unshare", "journalctl", "systemctl") if shutil.which(tool) is None
    ]
    if missing or not SYSTEMD.exists():
        return f"needs {', '.join(missing) or 'systemd'}"
    if _control_groups() is None:
        return "needs a mounted cgroup2"
    return None


def _control_groups() -> Path | None:
    """Returns where cgroup2 is mounted, alone or beside the older ones."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _device, where, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(where)
    return None


class BootedMachine:
    """`prefix`: in front of a command line, to run it in the network of the machine."""

    def __init__(self, directory: Path, environment: Path, prefix: tuple[str, ...]) -> None:
        self.directory = directory
        for name in ("bin", "home", "root", "units", "var-lib"):
            (directory / name).mkdir(parents=True)
        shutil.copytree("/etc", directory / "etc", symlinks=True, ignore=_of_the_host)
        (directory / "etc" / "fstab").write_text("")
        (directory / "etc" / "machine-id").write_text(os.urandom(16).hex() + "\n")
        for unit in UNITS.iterdir():
            if unit.suffix in (".target", ".service", ".socket") and unit.is_file():
                shutil.copy(unit, directory / "units")
        at = self._copy_programs(environment)
        groups = _control_groups()
        assert groups is not None
        self._group = groups / f"keelmq-{os.getpid()}-{directory.name}"
        self._group.mkdir()
        boot = ["sh", str(SCRIPT), str(directory), str(environment), sys.base_prefix, str(at)]
        spaces = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--cgroup", "--uts", "--ipc"]
        line = [*prefix, *spaces, *boot]
        enter = f"echo $$ > {shlex.quote(str(self._group))}/cgroup.procs && exec {shlex.join(line)}"
        with (directory / "boot.log").open("wb") as log:
            self._process = subprocess.Popen(["sh", "-c", enter], stdout=log, stderr=log)
        self._first = 0
        until("systemd runs", self._runs, self._process, directory / "boot.log")

    def _copy_programs(self, environment: Path) -> Path:
        """The environment's links to Python, to where the machine has it."""
        base = Path(sys.base_prefix)
        at = PYTHON if any(base.is_relative_to(each) for each in HIDDEN) else base
        for program in (environment / "bin").iterdir():
            copy = self.directory / "bin" / program.name
            if program.is_symlink() and program.resolve().is_relative_to(base):
                copy.symlink_to(at / program.resolve().relative_to(base))
            else:
                shutil.copy(program, copy, follow_symlinks=False)
        text = (environment / "pyvenv.cfg").read_text()
        (self.directory / "pyvenv.cfg").write_text(text.replace(str(base), str(at)))
        return at

    def _runs(self) -> bool:
        """Whether the first process answers systemctl."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            return False
        self._first = int(children[0])
        done = self._done(("systemctl", "is-system-running"), None)
        return done.stdout.strip() in ("running", "degraded")

    def run(self, *command: str, environ: Mapping[str, str] | None = None) -> str:
        """Returns what the command prints."""
        done = self._done(command, environ)
        told = f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        assert done.returncode == 0, f"{told}\n{self.journal() if 'systemctl' in told else ''}"
        return done.stdout

    def refused(self, *command: str, environ: Mapping[str, str] | None = None) -> str:
        """Returns what a command that must fail says."""
        done = self._done(command, environ)
        assert done.returncode != 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def property(self, unit: str, name: str) -> str:
        """Returns a property of a unit as `systemctl show` prints it."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def journal(self, *arguments: str) -> str:
        """Returns lines of the journal, without what is before each message."""
        return self._done(("journalctl", "--no-pager", "-o", "cat", *arguments), None).stdout

    def within(self, unit: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as root with the mounts of this unit's main process."""
        pid = self.property(unit, "MainPID")
        return self._done(("nsenter", "--mount", "--target", pid, "--", *command), None)

    def _done(
        self, command: tuple[str, ...], environ: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        given = environ or {"PATH": "/opt/keelmq/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home"}
        at_home = ("sh", "-c", 'cd /home && exec "$@"', "sh", *command)
        line = ["nsenter", "--all", "--target", str(self._first), "--", *at_home]
        return subprocess.run(line, env=given, capture_output=True, text=True, timeout=150)

    def stop(self) -> None:
        """Ends the machine's processes, and removes its control groups."""
        if self._process.poll() is None and self._first:
            self._done(("systemctl", "poweroff", "--force"), None)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.kill()
        self._process.wait()
        until("no process is left", lambda: "populated 0" in (self._group / "cgroup.events").read_text())
        for path in sorted(self._group.rglob("*/"), key=lambda each: len(each.parts), reverse=True):
            if path.is_dir():
                path.rmdir()
        self._group.rmdir()


def _of_the_host(folder: str, names: list[str]) -> set[str]:
    """What a new machine does not have: what the host enables, and files of KeelMQ."""
    if folder == "/etc/systemd":
        return {"system"}
    ours = {name for name in names if name.startswith("keelmq")}
    return ours | {"init.d", "mtab", *(name for name in names if fnmatch(name, "rc?.d"))}
