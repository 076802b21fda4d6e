"""How much memory a process has: all that is resident, or without the pages of mapped files."""

from pathlib import Path


def own_kib(pid: int) -> float:
    """What the system could not get back by writing it to the files that it belongs to."""
    return _kib(pid, "RssAnon", "RssShmem")


def resident_kib(pid: int) -> float:
    """What `top` shows: with the code of shared libraries, and with pages of the store."""
    return _kib(pid, "VmRSS")


def _kib(pid: int, *names: str) -> float:
    found = dict[str, int]()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[name] = int(value.split()[0])
    return float(sum(found.values()))
