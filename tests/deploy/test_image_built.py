"""The images of servers and of analytics, built with buildah on a base of Debian's packages, and their
programs as a pod runs them: as uid 10001, with a read-only root. No registry of images is asked."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.conftest import ROOT
from tests.deploy.test_image import PROJECT

PACKAGES = "python3,python3-venv,ca-certificates"
BYTES_MAX = 200_000_000
"""Of what the image of the servers adds to its base."""
ANALYTICS_BYTES_MAX = 900_000_000
PIP_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""How this machine reaches the packages; no part of the image."""
AS_A_POD = """
set -e
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount -t tmpfs tmpfs "$ROOT/tmp"
test ! -d "$ROOT/var/lib/keelmq" || mount -t tmpfs -o uid=10001,gid=10001 tmpfs "$ROOT/var/lib/keelmq"
ip link set lo up
exec chroot --userspec="$USER_OF" "$ROOT" env -i PATH="$PATH_OF" "$@"
"""
READY = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:19876/readyz', timeout=5).status)"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap", "unshare", "ip"))),
        reason="needs root, buildah and debootstrap: apt-get install buildah debootstrap iproute2",
    ),
]


class Buildah:
    """With a storage of its own."""

    def __init__(self, directory: Path) -> None:
        self._command = ["buildah", "--root", f"{directory}/storage", "--runroot", f"{directory}/run"]

    def __call__(self, *arguments: str | Path) -> str:
        environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = run(*self._command, *arguments, environ=environ)
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
        return done.stdout.strip()


def run(*command: str | Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Without a terminal: packages that are set up would stop a process in the background."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    found = Buildah(tmp_path_factory.mktemp("buildah"))
    try:
        yield found
    finally:
        found("rm", "--all")  # unmounts
        found("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def base(buildah: Buildah) -> str:
    """An image like python:3.11-slim-bookworm: Python with pip and setuptools outside of any environment."""
    working = buildah("from", "scratch")
    root = Path(buildah("mount", working))
    done = run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root)
    assert done.returncode == 0, done.stdout[-2_000:]
    for each in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        each.unlink()
    (pip,) = root.glob("usr/share/python-wheels/pip-*.whl")
    wheels = "/usr/share/python-wheels"
    install = ("install", "--quiet", "--no-index", f"--find-links={wheels}", "pip", "setuptools")
    done = run("chroot", root, "python3", f"{wheels}/{pip.name}/pip", *install)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(root / "var/cache/apt")
    shutil.rmtree(root / "var/lib/apt/lists")
    buildah("commit", "--quiet", working, "base")
    return "localhost/base"


def build(buildah: Buildah, base: str, dockerfile: str) -> str:
    if not (ROOT / "keelmq/web/static/console/index.html").exists():
        pytest.skip("the checkout has no pages: run `./run keelmq version`")
    mounts = [f"--volume={each}:{each}:ro" for each in PIP_FILES if Path(each).exists()]
    bases = [f"--build-arg={name}={base}" for name in ("BASE", "BUILD_BASE")]
    name = dockerfile.lower()
    buildah("bud", "--quiet", *bases, *mounts, "-f", f"deploy/docker/{dockerfile}", "-t", name, ".")
    return f"localhost/{name}"


Pod = tuple[list[str], dict[str, str]]
"""The beginning of a command line, and its environment."""


@pytest.fixture(scope="module")
def as_a_pod(buildah: Buildah, base: str) -> Pod:
    return pod_of(buildah, build(buildah, base, "Dockerfile"))


@pytest.fixture(scope="module")
def analytics_pod(buildah: Buildah, base: str) -> Pod:
    return pod_of(buildah, build(buildah, base, "Dockerfile.analytics"))


def pod_of(buildah: Buildah, image: str) -> Pod:
    config = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    variables = dict(each.split("=", 1) for each in config["Env"])
    root = buildah("mount", buildah("from", image))
    environ = {
        "PATH": os.environ["PATH"],
        "ROOT": root,
        "USER_OF": config["User"],
        "PATH_OF": variables["PATH"],
    }
    return ["unshare", "--mount", "--net", "sh", "-c", AS_A_POD, "sh"], environ


def bytes_of(pod: Pod, name: str) -> int:
    """Of KeelMQ and its packages."""
    _, environ = pod
    size, whole = (
        int(run("du", "-sb", environ["ROOT"] + path).stdout.split()[0]) for path in ("/opt/keelmq", "")
    )
    print(f"image of {name}: {whole / 1e6:.0f} MB, of which {size / 1e6:.0f} MB are KeelMQ and its packages")
    return size


def test_the_image_is_small(as_a_pod: Pod) -> None:
    assert 50_000_000 < bytes_of(as_a_pod, "servers") < BYTES_MAX


def test_every_program_starts_without_rights(as_a_pod: Pod) -> None:
    prefix, environ = as_a_pod
    for program in PROJECT["scripts"]:
        done = run(*prefix, program, "--version", environ=environ)
        assert done.returncode == 0 and PROJECT["version"] in done.stdout, f"{program}: {done.stderr}"
    assert run(*prefix, "id", "-u", environ=environ).stdout == "10001\n"
    assert run(*prefix, "touch", "/opt/keelmq/file", environ=environ).returncode != 0
    assert run(*prefix, "python3", "-m", "pip", "--version", environ=environ).returncode != 0
    found = run(*prefix, "find", "/", "-xdev", "-type", "f", "-perm", "/6000", environ=environ)
    assert found.stdout == ""


def test_the_command_of_the_image_serves_and_stops(as_a_pod: Pod) -> None:
    """A name server: it is ready by the health check of compose.yaml, and SIGTERM ends it."""
    prefix, environ = as_a_pod
    with subprocess.Popen([*prefix, "mqnamesrv"], env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            assert server.stdout.readline().startswith("ready: mqnamesrv listening on 0.0.0.0:9876")
            done = run("nsenter", f"--target={server.pid}", "--net", "python3", "-c", READY)
            assert done.stdout == "200\n", done.stderr
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_analytics_makes_its_pages(analytics_pod: Pod) -> None:
    """On a volume that uid 10001 can write to, with no other right."""
    prefix, environ = analytics_pod
    assert 200_000_000 < bytes_of(analytics_pod, "analytics") < ANALYTICS_BYTES_MAX
    steps = (
        "keelmq analytics generate --output /tmp/in --groups 1 --hours 1 --incidents none"
        " && keelmq analytics run --input /tmp/in --output /tmp/out && ls /tmp/out/current.json"
    )
    done = run(*prefix, "sh", "-c", steps, environ=environ)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.splitlines()[-1] == "/tmp/out/current.json"
