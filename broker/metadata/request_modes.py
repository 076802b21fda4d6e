"""The message request modes, pull or pop, of groups for topics: config/messageRequestMode.json.

Replicated like topics and groups. Key of a row: topic@group. Source: RocketMQ 5.3.3
MessageRequestModeManager.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from broker.metadata.core.table import Update, Version
from broker.metadata.file_store import FileStore
from broker.metadata.offsets import SEPARATOR, split_key
from broker.metadata.store import data_version
from keelmq.remoting.operations.pop import RequestModeBody, RequestModes


class RequestModeTable(FileStore[RequestModeBody]):
    """Row: the mode (pull or pop) of one group for one topic."""

    name: ClassVar[str] = "messageRequestModes"
    what: ClassVar[str] = "the table of message request modes"

    def row_of(self, value: Any) -> RequestModeBody:
        """Returns the row of a SetMessageRequestModeRequestBody."""
        return RequestModeBody.model_validate(value)

    def json_of(self, row: RequestModeBody) -> Any:
        """Returns the JSON that row_of() reads."""
        return row.model_dump(by_alias=True, exclude_none=True, mode="json")

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, RequestModeBody], dict[str, int]]:
        """Returns the rows of messageRequestMode.json; there are no tombstones."""
        modes = RequestModes.model_validate(value).message_request_mode_map
        rows = {
            f"{topic}{SEPARATOR}{group}": mode
            for topic, groups in modes.items()
            for group, mode in groups.items()
        }
        return rows, {}

    def file_of(
        self, rows: Mapping[str, RequestModeBody], gone: Mapping[str, int], version: Version
    ) -> dict[str, Any]:
        """Returns the content of messageRequestMode.json."""
        body = _body(rows).model_dump(by_alias=True, mode="json")
        return {"dataVersion": data_version(version).model_dump(by_alias=True)} | body

    def body(self) -> RequestModes:
        """Returns the whole table (402)."""
        return _body(self.table.rows)

    def get(self, topic: str, group: str) -> RequestModeBody | None:
        """Returns the mode; None: none was set."""
        return self.table.rows.get(f"{topic}{SEPARATOR}{group}")

    def update(self, mode: RequestModeBody) -> Version:
        """Sets a mode and returns the version with it. Raises ValueError if the table is full, OSError if
        it cannot be written."""
        key = f"{mode.topic}{SEPARATOR}{mode.consumer_group}"
        rows = self.table.rows
        if rows.get(key) == mode:
            return self.table.version
        if key not in rows and len(rows) >= self.rows_max:
            raise ValueError(f"there are already {self.rows_max} message request modes")
        return self.change({key: mode})

    def adopt(self, body: RequestModes, source_epoch: int) -> str | None:
        """Adopts the whole table of a RocketMQ master, which has no version. Returns why it was refused;
        None: it was adopted, or has no change."""
        rows, _ = self.read_file(body.model_dump(by_alias=True))
        base = self.table.version
        if rows == self.table.rows and source_epoch <= base.state_version:
            return None
        version = Version(max(source_epoch, base.state_version), base.counter + 1, base.timestamp)
        return self.accept(self.to_wire(Update(version, rows)))

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Removes the modes of a deleted topic or group."""
        gone = [key for key in self.table.rows if topic == split_key(key)[0] or group == split_key(key)[1]]
        if gone:
            self.change({}, dict.fromkeys(gone, 0))


def _body(rows: Mapping[str, RequestModeBody]) -> RequestModes:
    found: dict[str, dict[str, RequestModeBody]] = {}
    for key in sorted(rows):
        topic, group = split_key(key)
        found.setdefault(topic, {})[group] = rows[key]
    return RequestModes(message_request_mode_map=found)
