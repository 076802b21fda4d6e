"""How much memory a process has for itself: resident, without the pages of mapped files."""

from pathlib import Path


def own_kib(pid: int) -> float:
    """What the system could not get back by writing it to the files that it belongs to."""
    found = dict[str, int]()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem"):
            found[name] = int(value.split()[0])
    return float(sum(found.values()))
