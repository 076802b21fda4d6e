"""Writes a CycloneDX bill of materials: what an installed KeelMQ is made of.

That is the locked packages of requirements/run.txt with the hashes that an installation checks, the sources
of the compiled modules, and the scripts of others in the web pages: those of keelmq/web/vendor, and the npm
packages that are bundled. Packages that only the build needs have the scope "excluded"; those of npm are left
out. Two runs on one checkout write the same bytes.

Run it by `make sbom`, which installs requirements/supply.txt first.
"""

import argparse
import base64
import hashlib
import json
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from locked import Locked, read_lock
from packageurl import PackageURL
from vendor import PACKAGES, SHA256

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from hatch_build import FLAGS  # noqa: E402 - of the checkout, and not a package

LEAF_PACKAGES = ("keelmq", "broker")
NPM_LOCK = "keelmq/web/frontend/package-lock.json"
IN_MODULES = "node_modules/"


def bill(root: Path = ROOT) -> Bom:
    """Returns the bill of materials of the checkout."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    product = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        bom_ref=project["name"],
        licenses=[LicenseExpression(project["license"])],
        supplier=OrganizationalEntity(name="The KeelMQ maintainers"),
    )
    bom = Bom()
    bom.metadata.component = product
    locked = read_lock("run")
    packages = {each.name: package(each, is_for_build=each.name in build_only(locked)) for each in locked}
    direct = [packages[each.name] for each in locked if any(_is_root(name) for name in each.parents)]
    bundled = npm_packages(root)
    scripts = {name: component for name, (component, _) in bundled.items()}
    extra = [*vendored_scripts(), *leaf_sources(root)]
    for component in (*packages.values(), *scripts.values(), *extra):
        bom.components.add(component)
    of_others = {name for _, needs in bundled.values() for name in needs}
    direct += [component for name, component in scripts.items() if name not in of_others]
    bom.register_dependency(product, [*direct, *extra])
    for component, names in bundled.values():
        bom.register_dependency(component, [scripts[each] for each in names])
    for each in packages:
        needs = [packages[other.name] for other in locked if each in other.parents]
        bom.register_dependency(packages[each], needs)
    # Without a clock and random numbers: the same checkout has the same bill.
    bom.metadata.timestamp = None  # type: ignore[assignment]
    refs = sorted(f"{each.bom_ref} {each.hashes}" for each in bom.components)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join([f"keelmq {product.version}", *refs]))
    return bom


def _is_root(parent: str) -> bool:
    return parent.startswith(("keelmq ", "-r "))


def build_only(locked: list[Locked]) -> set[str]:
    """Returns the packages that builds need and a running program does not."""
    running = {each.name for each in locked if any(name.startswith("keelmq ") for name in each.parents)}
    while more := {each.name for each in locked if running & set(each.parents)} - running:
        running |= more
    return {each.name for each in locked} - running


def package(locked: Locked, *, is_for_build: bool) -> Component:
    """Returns a package of requirements/run.txt, with a hash for each file that an installation accepts."""
    marker = [] if locked.marker is None else [Property(name="keelmq:marker", value=locked.marker)]
    return Component(
        name=locked.name,
        version=locked.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"pypi:{locked.name}",
        purl=PackageURL("pypi", None, locked.name, locked.version),
        scope=ComponentScope.EXCLUDED if is_for_build else ComponentScope.REQUIRED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in locked.hashes],
        properties=marker,
    )


def vendored_scripts() -> Iterator[Component]:
    """Yields the scripts and styles of keelmq/web/vendor, and the packages that they are from."""
    for name, sha256 in sorted(SHA256.items()):
        if name.endswith((".js", ".css")):
            yield Component(
                name=name,
                type=ComponentType.FILE,
                bom_ref=f"file:keelmq/web/vendor/{name}",
                scope=ComponentScope.REQUIRED,
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
            )
    for each in sorted(PACKAGES):
        name, _, version = each.rpartition("@")
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"npm:{name}",
            purl=npm_url(name, version),
            scope=ComponentScope.REQUIRED,
        )


def npm_packages(root: Path) -> dict[str, tuple[Component, list[str]]]:
    """Returns the npm packages that are bundled into the pages, each with the names of those it needs."""
    locked = json.loads((root / NPM_LOCK).read_text())["packages"]
    found = {}
    for path, each in sorted(locked.items()):
        if not path or each.get("dev"):
            continue
        name, version = path.removeprefix(IN_MODULES), each["version"]
        if IN_MODULES in name:
            raise ValueError(f"{NPM_LOCK} has two versions of a package: {path}")
        algorithm, _, digest = each["integrity"].partition("-")
        if algorithm != "sha512":
            raise ValueError(f"{NPM_LOCK}: {path} has no sha512: {each['integrity']}")
        component = Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"npm:{name}",
            purl=npm_url(name, version),
            scope=ComponentScope.REQUIRED,
            hashes=[HashType(alg=HashAlgorithm.SHA_512, content=base64.b64decode(digest).hex())],
        )
        found[name] = component, sorted(each.get("dependencies", {}))
    return found


def npm_url(name: str, version: str) -> PackageURL:
    """Returns the package URL of an npm package, whose name may have a scope (@scope/name)."""
    scope, _, last = name.rpartition("/")
    return PackageURL("npm", scope or None, last, version)


def leaf_sources(root: Path) -> Iterator[Component]:
    """Yields the sources of the compiled modules: the C compiler gets what Cython makes of these files."""
    types = sorted(path for package in LEAF_PACKAGES for path in (root / package).rglob("*.pxd"))
    for path in (each for twin in types for each in (twin.with_suffix(".py"), twin)):
        name = str(path.relative_to(root))
        yield Component(
            name=name,
            type=ComponentType.FILE,
            bom_ref=f"file:{name}",
            scope=ComponentScope.REQUIRED,
            hashes=[
                HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())
            ],
            properties=[Property(name="keelmq:compiler-flags", value=" ".join(FLAGS))],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "keelmq.cdx.json")
    output = parser.parse_args().output
    text = JsonV1Dot6(bill()).output_as_string(indent=2) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        sys.exit(f"sbom: not CycloneDX 1.6: {problem}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    sys.stdout.write(f"{output}\n")


if __name__ == "__main__":
    main()
