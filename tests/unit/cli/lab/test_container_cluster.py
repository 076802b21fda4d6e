"""A group that is added to a cluster of containers: files that no running container reads yet."""

from pathlib import Path

from cli.lab.container_cluster import ContainerCluster


def read(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_an_added_group_has_a_replica_in_each_container(tmp_path: Path) -> None:
    cluster = ContainerCluster(
        tmp_path, groups=("a", "b"), containers=3, broker_settings={"minInSyncReplicas": "2"}
    )
    before = [program.config_path.read_text() for program in cluster.containers]
    files = cluster.add_group("c")
    assert list(files) == [each.name for each in cluster.containers]
    assert [program.config_path.read_text() for program in cluster.containers] == before
    for (name, file), broker in zip(files.items(), cluster.group("c").brokers, strict=True):
        settings = read(file)
        assert settings == broker.settings
        assert (settings["brokerName"], settings["minInSyncReplicas"]) == ("c", "2")
        assert settings["storePathRootDir"] == str(tmp_path / f"{name}-c")
    every = [broker for group in "abc" for broker in cluster.group(group).brokers]
    assert len({broker.settings["listenPort"] for broker in every}) == 9
    cluster.containers[0].write()
    assert str(files["broker-0"]) in cluster.containers[0].config_path.read_text(), "from its next start on"
