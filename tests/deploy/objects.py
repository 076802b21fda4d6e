"""Rendered Kubernetes objects, with the questions that our tests ask of them."""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
NODE_ADDRESS = "192.0.2.7"
"""Of the node of every pod, for its `status.hostIP`."""


@dataclass(frozen=True)
class Objects:
    all: list[Object]

    def kind(self, kind: str) -> list[Object]:
        return [each for each in self.all if each["kind"] == kind]

    def named(self, kind: str, name: str) -> Object:
        (found,) = [each for each in self.kind(kind) if each["metadata"]["name"] == name]
        return found

    @property
    def stateful_sets(self) -> list[Object]:
        return self.kind("StatefulSet")

    def config_files(self, stateful_set: Object) -> dict[str, str]:
        """Path in the container -> text, of every mounted ConfigMap."""
        found = {}
        for mount in container(stateful_set)["volumeMounts"]:
            volume = volume_of(stateful_set, mount["name"])
            if "configMap" in volume:
                for name, text in self.named("ConfigMap", volume["configMap"]["name"])["data"].items():
                    found[f"{mount['mountPath']}/{name}"] = text
        return found


def pod_spec(stateful_set: Object) -> Object:
    spec: Object = stateful_set["spec"]["template"]["spec"]
    return spec


def container(stateful_set: Object) -> Object:
    """The program's; beside it may be one that copies telemetry."""
    found: Object
    found, *beside = pod_spec(stateful_set)["containers"]
    assert [each["name"] for each in beside] in ([], ["telemetry"])
    return found


def volume_of(stateful_set: Object, name: str) -> Object:
    """A volume of the pod, or the claim template behind the mount."""
    volumes = pod_spec(stateful_set).get("volumes", [])
    claims = stateful_set["spec"].get("volumeClaimTemplates", [])
    (found,) = [each for each in volumes if each["name"] == name] + [
        {"claim": each} for each in claims if each["metadata"]["name"] == name
    ]
    return found


def pod_names(stateful_set: Object) -> list[str]:
    return [
        f"{stateful_set['metadata']['name']}-{index}" for index in range(stateful_set["spec"]["replicas"])
    ]


def environment(stateful_set: Object, *, index: int, address: str) -> dict[str, str]:
    """What the container's `env` becomes in the pod with this index; KeyError: a field we do not know."""
    name = stateful_set["metadata"]["name"]
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    fields = {f"metadata.labels['{label}']": value for label, value in labels.items()} | {
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
        "metadata.name": f"{name}-{index}",
        "metadata.namespace": stateful_set["metadata"]["namespace"],
        "status.hostIP": NODE_ADDRESS,
        "status.podIP": address,
    }
    return {
        each["name"]: fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        if "valueFrom" in each
        else each["value"]
        for each in container(stateful_set).get("env", [])
    }


def expanded(argument: str, variables: dict[str, str]) -> str:
    """$(NAME) as Kubernetes replaces it. AssertionError: one that is not defined (it would stay as it is)."""
    for name, value in variables.items():
        argument = argument.replace(f"$({name})", value)
    assert "$(" not in argument, f"{argument}: not among {sorted(variables)}"
    return argument


def port_number(stateful_set: Object, port: int | str) -> int:
    """Of a port given by number or by name."""
    if isinstance(port, int):
        return port
    (found,) = [each["containerPort"] for each in container(stateful_set)["ports"] if each["name"] == port]
    assert isinstance(found, int)
    return found
