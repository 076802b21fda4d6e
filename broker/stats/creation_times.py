"""CreationTimes: how long tools wait for a topic or a group that they create or change (17, 200)."""

from collections.abc import Callable, Mapping
from typing import Final

from broker.stats.rpc_latency import Watcher
from keelmq.remoting.codes import RequestCode
from keelmq.runtime.histogram import Histogram

BOUNDS_MS: Final = (10, 100, 1_000, 3_000, 5_000)


class CreationTimes:
    """topics: by (invocation_status, is_system); groups: by (invocation_status,). RocketMQ's labels."""

    def __init__(self) -> None:
        self.topics: dict[tuple[str, str], Histogram] = {}
        self.groups: dict[tuple[str], Histogram] = {}

    def watchers(self, is_system: Callable[[str], bool]) -> Mapping[int, Watcher]:
        """Returns the watchers for RpcLatency.watch(). is_system: of a topic's name."""

        def topic(request: object, is_success: bool, elapsed_ms: float) -> None:
            key = _status(is_success), str(is_system(getattr(request, "topic", ""))).lower()
            self.topics.setdefault(key, Histogram(BOUNDS_MS)).observe(elapsed_ms)

        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: topic,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._group,
        }

    def _group(self, request: object, is_success: bool, elapsed_ms: float) -> None:
        self.groups.setdefault((_status(is_success),), Histogram(BOUNDS_MS)).observe(elapsed_ms)


def _status(is_success: bool) -> str:
    return "success" if is_success else "failure"
