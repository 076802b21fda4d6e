"""Which masters a route has replaced. Pure."""

from keelmq.client.cluster.routes import TopicRoute


class KnownMasters:
    """The masters of each topic's groups of brokers, as the routes named them."""

    def __init__(self) -> None:
        self._of_topics: dict[str, dict[str, str | None]] = {}

    def replaced(self, route: TopicRoute) -> frozenset[str]:
        """Takes a topic's new route. Returns the brokerNames whose master differs from the previous route, or
        is back: it may have been restarted without its last seconds. A broker that the topic did not have
        yet, and new queues, replace no master."""
        before = self._of_topics.get(route.topic, {})
        now: dict[str, str | None] = {name: route.master(name) for name in (*before, *route.addresses)}
        self._of_topics[route.topic] = now
        return frozenset(
            name for name, master in now.items() if master and name in before and before[name] != master
        )
