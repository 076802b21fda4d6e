"""Topics and consumer offsets, as many as limits allow, written into the stores of brokers that are down."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from broker.metadata.offsets import ConsumerOffsetTable
from broker.metadata.topics import TopicTable
from keelmq.remoting.operations.route import TopicConfig

QUEUES = 8


def topic_names(topics: int) -> list[str]:
    """The names of the made topics."""
    return [f"Table{number:06d}" for number in range(topics)]


def write_tables(
    stores: Iterable[Path], *, topics: int, offsets: int, topic: str, cluster_name: str, broker_name: str
) -> None:
    """Gives every store the same tables. offsets: rows of QUEUES queues, for the made topics in turn, or for
    `topic` if none are made. Offsets are 0, so that no promotion has one to lower."""
    names = topic_names(topics)
    first, *others = stores
    config = first / "config"
    config.mkdir(parents=True, exist_ok=True)
    if topics:
        table = TopicTable(config / "topics.json", broker_name=broker_name, cluster_name=cluster_name)
        table.load()
        one = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        table.change({name: one.model_copy(update={"topic_name": name}) for name in names})
    if offsets:
        places = names or [topic]
        rows = ConsumerOffsetTable(config / "consumerOffset.json")
        rows.load()
        for number in range(offsets):
            group, at = divmod(number, len(places))
            for queue_id in range(QUEUES):
                if not rows.commit(f"group-{group}", places[at], queue_id, 0):
                    raise ValueError(f"a table of consumer offsets has at most {rows.rows_max} rows")
        rows.flush()
    for other in others:
        shutil.copytree(config, other / "config", dirs_exist_ok=True)
