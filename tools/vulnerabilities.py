"""Asks for known vulnerabilities of all locked packages.

Exit codes: 0 none is known; 1 a package has some; 3 no database reachable, or it does not know a package, so
nothing is certain. Run it by `make vulnerabilities`, which installs requirements/supply.txt first.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from locked import LOCKS, REQUIREMENTS

NONE_KNOWN, VULNERABLE, NOT_CHECKED = 0, 1, 3
SERVICES: Final = ("pypi", "osv")
TIMEOUT_S = 15


def ask(service: str) -> tuple[int, str]:
    """Returns the exit code and the lines to print, with the answers of one database."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--disable-pip", "--require-hashes", "--timeout", str(TIMEOUT_S)]
    command += ["--vulnerability-service", service]
    for group in LOCKS:
        command += ["--requirement", str(REQUIREMENTS / f"{group}.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return verdict(done.stdout, done.stderr)


def verdict(report: str, errors: str) -> tuple[int, str]:
    """Judges what pip-audit printed. Its own exit code is 1 for a database that cannot be reached as well,
    and 0 if the database knew none of the packages."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (errors.strip() or "no answer").splitlines()[-1]
        return NOT_CHECKED, f"no database reachable: {last}"
    if lines := list(_found(packages)):
        return VULNERABLE, "\n".join(lines)
    skipped = sorted({str(each["name"]) for each in packages if "skip_reason" in each})
    if skipped or not packages:
        return NOT_CHECKED, (
            f"no database reachable: {len(skipped)} of {len(packages)} packages are not in what answered"
            + (f" ({', '.join(skipped[:5])}...)" if skipped else "")
        )
    return NONE_KNOWN, f"no known vulnerabilities in {len(packages)} locked packages"


def _found(packages: list[dict[str, Any]]) -> Iterator[str]:
    for package in packages:
        for each in package.get("vulns", ()):
            fixed = ", ".join(each.get("fix_versions", ())) or "none"
            names = " ".join([each["id"], *each.get("aliases", ())])
            yield f"{package['name']} {package['version']}: {names} (fixed in: {fixed})"


def main() -> None:
    code, text = NOT_CHECKED, ""
    for service in SERVICES:
        code, text = ask(service)
        if code != NOT_CHECKED:
            break
    # After the last database: an unreachable one is no reason to fear, and none to be calm.
    sys.stderr.write(f"vulnerabilities: {text}\n")
    if code == NOT_CHECKED:
        sys.stderr.write("vulnerabilities: nothing was checked; run it again where the network allows it\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
