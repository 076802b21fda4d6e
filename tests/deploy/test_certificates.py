"""docs/kubernetes.md, certificates instead of the raft key: what is told there works, in every pod."""

import base64
import re
from pathlib import Path

import yaml

from cli.certificates import make
from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.raft.transport.certificates import read_certificates
from tests.deploy.conftest import ROOT, copy_tree, render
from tests.deploy.objects import Objects, container, volume_of
from tests.deploy.test_policy import configs

MOUNT = "/etc/keelmq/secret"


def test_the_recipe(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "kubernetes.md").read_text().split("## Certificates instead", 1)[1]
    lines = re.findall(r"^controllerRaftTls\w+=.*$", section, re.MULTILINE)
    assert len(lines) == 3
    tree, made = copy_tree(tmp_path, key=None), tmp_path / "raft-certificates"
    make(["n0", "n1", "n2"], made, days=90, ca_days=900, together=True)
    for name in ("members.crt", "members.key", "ca.crt"):
        (tree / "base" / name).write_bytes((made / name).read_bytes())
    customization = tree / "base" / "kustomization.yaml"
    text = customization.read_text()
    assert "files: [raft.key]" in text
    customization.write_text(text.replace("files: [raft.key]", "files: [members.crt, members.key, ca.crt]"))
    for path in tree.glob("**/namesrv.conf"):
        with_key = path.read_text()
        path.write_text(
            re.sub(r"^controllerRaftSecretFile=.*$", "\n".join(lines), with_key, flags=re.MULTILINE)
        )
    done = render(tree, "ha")
    assert done.returncode == 0, done.stderr
    objects = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    pods = objects.named("StatefulSet", "keelmq-namesrv")
    (mount,) = [each for each in container(pods)["volumeMounts"] if each["mountPath"] == MOUNT]
    assert "subPath" not in mount, "the kubelet would not renew it"
    secret = objects.named("Secret", volume_of(pods, mount["name"])["secret"]["secretName"])
    for name, data in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(data))
    for index in range(3):
        _, controller = configs(objects, pods, tmp_path, index)
        files = controller.tls_files
        assert {path.parent for path in (files.certificate, files.key, files.trust)} == {Path(MOUNT)}
        here = TlsFiles(*(tmp_path / path.name for path in (files.certificate, files.key, files.trust)))
        assert read_certificates(here, controller.controller_d_leger_self_id).info.names == (
            "n0",
            "n1",
            "n2",
        )
