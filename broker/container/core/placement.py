"""Which worker of a container runs which broker: for a new broker, and moves that rebalance existing ones.

Pure: workers are numbers from 0 on, and the same input gives the same answer. The rules of both functions, in
order of priority:

1. Replicas of one group are on different workers as far as possible, because a worker that dies takes all of
   its brokers down.
2. Masters are spread evenly: they carry nearly all of the load.
3. Brokers are spread evenly.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.container.core.identity import BrokerIdentity


class Placed(NamedTuple):
    """A broker on a worker. is_master: serves as master now, or will if nothing is known yet."""

    identity: BrokerIdentity
    worker: int
    is_master: bool = False


class Move(NamedTuple):
    """One step of a plan."""

    identity: BrokerIdentity
    source: int
    target: int


def choose_worker(
    identity: BrokerIdentity,
    placed: Iterable[Placed],
    workers: Sequence[int],
    *,
    is_master: bool = False,
    remembered: int | None = None,
) -> int:
    """Returns the worker for a broker that is not in `placed`. remembered: where it ran before; it returns
    there if there is such a worker, so that a restart places all brokers as they were, whatever the order in
    which they start. ValueError: there are no workers."""
    if not workers:
        raise ValueError("there are no workers")
    if remembered in workers:
        assert remembered is not None
        return remembered
    load = _Load(placed)
    return min(workers, key=lambda worker: load.rank(identity, worker, is_master=is_master))


def moves_to_even_out(placed: Sequence[Placed], workers: Sequence[int]) -> list[Move]:
    """Returns the moves after which no further move of one broker would place them better; each broker moves
    at most once, and slaves rather than masters. Brokers on a worker that is not in `workers` move in any
    case. ValueError: there are no workers."""
    if not workers:
        raise ValueError("there are no workers")
    where = {each.identity: each for each in placed}
    for each in sorted(placed):
        if each.worker not in workers:
            others = [other for other in where.values() if other.worker in workers]
            worker = choose_worker(each.identity, others, workers, is_master=each.is_master)
            where[each.identity] = each._replace(worker=worker)
    load = _Load(where.values())
    # Each step lowers a sum of squares, in the order of the rules, so there is a last one.
    while better := load.best_step(where.values(), workers):
        broker, target = better
        load.add(broker, -1)
        where[broker.identity] = moved = broker._replace(worker=target)
        load.add(moved, 1)
    return [
        Move(each.identity, each.worker, where[each.identity].worker)
        for each in sorted(placed, key=lambda each: (each.is_master, each))
        if where[each.identity].worker != each.worker
    ]


class _Load:
    """Counts of brokers by worker."""

    def __init__(self, placed: Iterable[Placed]) -> None:
        self._replicas: Counter[tuple[str, str, int]] = Counter()
        self._masters: Counter[int] = Counter()
        self._brokers: Counter[int] = Counter()
        for each in placed:
            self.add(each, 1)

    def add(self, broker: Placed, count: int) -> None:
        """Adds a broker (1), or removes it (-1)."""
        identity, worker, is_master = broker
        self._replicas[identity.cluster, identity.name, worker] += count
        self._brokers[worker] += count
        if is_master:
            self._masters[worker] += count

    def rank(self, identity: BrokerIdentity, worker: int, *, is_master: bool) -> tuple[int, ...]:
        """Returns how bad the worker is for one more broker. A slave may be promoted, so masters count for it
        too, after all brokers."""
        replicas = self._replicas[identity.cluster, identity.name, worker]
        masters, brokers = self._masters[worker], self._brokers[worker]
        return (replicas, masters, brokers, worker) if is_master else (replicas, brokers, masters, worker)

    def best_step(self, placed: Iterable[Placed], workers: Sequence[int]) -> tuple[Placed, int] | None:
        """Returns the broker and its new worker that improve the placement most; None: nothing does."""
        steps = [(broker, target) for broker in placed for target in workers if target != broker.worker]
        best = min(steps, key=self._step_rank, default=None)
        return best if best is not None and self._gain(*best) < (0, 0, 0) else None

    def _step_rank(self, step: tuple[Placed, int]) -> tuple[object, ...]:
        broker, target = step
        return (self._gain(broker, target), broker.is_master, broker.identity, target)

    def _gain(self, broker: Placed, target: int) -> tuple[int, int, int]:
        """Half of how much the move changes the sums of the squared counts, rule by rule; negative is
        better."""
        (cluster, name, _), source, is_master = broker
        return (
            self._replicas[cluster, name, target] - self._replicas[cluster, name, source] + 1,
            self._masters[target] - self._masters[source] + 1 if is_master else 0,
            self._brokers[target] - self._brokers[source] + 1,
        )
