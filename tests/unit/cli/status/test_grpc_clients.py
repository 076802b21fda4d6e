"""Brokers with enableProxy show their clients of gRPC."""

from msgspec.structs import replace

from cli.status.view import screen
from keelmq.health.summary import status_of
from tests.gallery.cluster import BROKERS, broker, healthy


def test_only_a_broker_with_a_proxy_shows_it() -> None:
    seen = healthy()
    known = broker(0)
    info = {**known.info, "grpcServerPort": "8081", "grpcClients": "3"}
    seen.brokers[BROKERS[0]] = replace(known, info=info)
    found = status_of(seen)
    ports = [each.grpc_port for group in found.groups for each in group.replicas]
    assert sorted(filter(None, ports)) == [8081] and len(ports) > 1
    lines = [str(line) for line in screen(found) if "gRPC" in str(line)]
    assert lines == ["     gRPC at port 8081: 3 clients"]
