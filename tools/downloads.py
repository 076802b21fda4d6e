"""Writes requirements/downloads: what a set-up of each group downloads, in MB. Called by `make lock`.

    python tools/downloads.py UV GROUP:BASE,BASE GROUP ...

A group's line is of the packages that are in none of its BASE groups, which are installed before. Sizes are
of the wheels for CPython 3.11 on Linux, x86-64; the registry that uv uses tells them."""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from locked import REQUIREMENTS, read_lock

PYTHON, PLATFORM = "3.11", "x86_64-manylinux_2_28"
TAGS = ("-cp311-cp311-", "-abi3-", "-none-")
OUTPUT = REQUIREMENTS / "downloads"


def sizes(uv: str, group: str) -> dict[str, int]:
    """Returns the bytes of each package's file."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "pylock.toml")
        command = [
            uv,
            "pip",
            "compile",
            REQUIREMENTS / f"{group}.txt",
            "--no-deps",
            "--format",
            "pylock.toml",
        ]
        command += ["--python-version", PYTHON, "--python-platform", PLATFORM, "--output-file", output]
        subprocess.run([*command, "--no-header", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        packages = tomllib.loads(output.read_text())["packages"]
    return {each["name"]: size_of(each) for each in packages}


def size_of(package: dict[str, Any]) -> int:
    """Returns the bytes of the wheel that is taken, else of the source."""
    wheels = package.get("wheels", [])
    fitting = [each for each in wheels if any(tag in each["url"] for tag in TAGS)] or wheels
    return int((fitting or [package["sdist"]])[0]["size"])


def main(uv: str, groups: list[str]) -> None:
    lines = ["# MB that a set-up downloads (Linux, x86-64); tools/lock.sh"]
    for text in groups:
        group, _, bases = text.partition(":")
        known = {each.name for base in bases.split(",") if base for each in read_lock(base)}
        added = sum(size for name, size in sizes(uv, group).items() if name not in known)
        lines.append(f"{group} {round(added / 1e6)}")
    OUTPUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
