"""Checks that a tag, the package, the Helm chart and the change log name one version, and prints it.

    python tools/release_version.py v0.1.0

.github/workflows/release.yml runs it before anything is built. Exit codes: 0 they agree, 1 they differ. It
needs the standard library only, because it runs before packages are installed.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE, CHART, CHANGES = "pyproject.toml", "deploy/helm/keelmq/Chart.yaml", "CHANGELOG.md"
TAG = re.compile(r"v(\d+\.\d+\.\d+)")
CHART_KEYS = ("version", "appVersion")


def version_of(tag: str) -> str | None:
    """Returns the version of a release; None: the tag is not one of a release."""
    found = TAG.fullmatch(tag)
    return None if found is None else found[1]


def differences(tag: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yields what is wrong and what to do, a line for each. texts: content of PACKAGE, CHART, CHANGES."""
    version = version_of(tag)
    if version is None:
        yield f"the tag {tag} is not of the form v1.2.3: delete it, and tag the commit again"
        return
    package = tomllib.loads(texts[PACKAGE])["project"]["version"]
    found = {f"{PACKAGE}: version": package}
    for key in CHART_KEYS:
        value = re.search(rf"^{key}: *[\"']?([^\"'\s]*)", texts[CHART], re.MULTILINE)
        found[f"{CHART}: {key}"] = "missing" if value is None else value[1]
    for where, what in found.items():
        if what != version:
            yield f"{where} is {what}, and the tag is {tag}: set it to {version}, commit, and move the tag"
    headings = re.findall(r"^## (.*)$", texts[CHANGES], re.MULTILINE)
    if f"{version} (unreleased)" in headings:
        yield f"{CHANGES}: {version} is called unreleased: write the date there, commit, and move the tag"
    elif not any(heading.split(" ")[0] == version for heading in headings):
        yield f"{CHANGES} has no heading '## {version}': write what has changed, commit, and move the tag"


def main() -> int:
    parser = argparse.ArgumentParser(prog="release_version.py", description=__doc__.partition("\n")[0])
    parser.add_argument("tag", help="such as v0.1.0")
    tag: str = parser.parse_args().tag
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in (PACKAGE, CHART, CHANGES)}
    found = list(differences(tag, texts))
    for line in found:
        sys.stderr.write(f"release: {line}\n")
    if not found:
        sys.stdout.write(f"{version_of(tag)}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
