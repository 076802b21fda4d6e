"""Scripts of others in keelmq/web/vendor: fetches them from npm, or with --check
only compares the checksums.

Run it after a change of PACKAGES: python tools/vendor.py. It needs npm; --check needs nothing.
"""

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "keelmq" / "web" / "vendor"

SWAGGER = "swagger-ui-5.35.0.js"
SWAGGER_STYLE = "swagger-ui-5.35.0.css"
SWAGGER_LICENSES = "swagger-ui-5.35.0.LICENSE.txt"
PACKAGES = {
    "swagger-ui-dist@5.35.0": [
        "swagger-ui-bundle.js",
        "swagger-ui.css",
        "LICENSE",
        "NOTICE",
        "swagger-ui-bundle.js.LICENSE.txt",
    ],
}
"""Swagger UI is for /docs of the programs: the bundle without the presets of its stand-alone page."""

SHA256 = {
    SWAGGER: "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    SWAGGER_STYLE: "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
    SWAGGER_LICENSES: "2d15bc2957a4c8c0ac69260875eac48c3805315602c9d1485b0e5ffd1c2d3942",
}


def fetch(package: str, names: list[str], folder: Path) -> list[bytes]:
    packed = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(folder / packed.stdout.decode().strip()) as archive:
        files = [archive.extractfile(f"package/{name}") for name in names]
        return [file.read() for file in files if file is not None]


def vendored() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        found = {package: fetch(package, names, Path(folder)) for package, names in PACKAGES.items()}
    bundle, style, swagger_license, swagger_notice, bundled = found["swagger-ui-dist@5.35.0"]
    swagger = [("Swagger UI", swagger_license), ("NOTICE", swagger_notice), ("In its bundle", bundled)]
    return {
        SWAGGER: bundle,
        SWAGGER_STYLE: style,
        SWAGGER_LICENSES: _joined(swagger),
    }


def _joined(titled: list[tuple[str, bytes]]) -> bytes:
    return b"\n\n".join(
        b"%s\n%s\n\n%s\n" % (name.encode(), b"=" * len(name), text.strip()) for name, text in titled
    )


def wrong(files: dict[str, bytes]) -> list[str]:
    """A line for each file that is not what was published."""
    found = {name: hashlib.sha256(files[name]).hexdigest() for name in SHA256}
    return [
        f"vendor: {name} has sha256 {sha}, not {SHA256[name]}"
        for name, sha in found.items()
        if sha != SHA256[name]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare the files that are there; fetch nothing"
    )
    check = parser.parse_args().check
    files = {name: (VENDOR / name).read_bytes() for name in SHA256} if check else vendored()
    if faults := wrong(files):
        sys.exit("\n".join(faults))
    if not check:
        for name, content in files.items():
            (VENDOR / name).write_bytes(content)


if __name__ == "__main__":
    main()
