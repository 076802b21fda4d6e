"""Answers with a whole table (21, 201), in pages if it does not fit into a frame.

Source: RocketMQ 5.3.4 (#9467): the request names the first row, how many, and the version of the rows that it
has already; a page of another version begins with the first row. A table that fits is sent whole and without
header fields, because RocketMQ's slaves of 5.3.4 to 5.4 treat any header field as that of a page.
"""

from collections.abc import Sequence

import msgspec
from pydantic import ValidationError

from broker.metadata.encoded_rows import EncodedRows
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operation import CommandError
from keelmq.remoting.operations.route import DataVersion

ANSWER_BYTES_MAX = FRAME_BYTES_MAX - 1024 * 1024
"""Limit of the rows. The rest of the frame is for the header and the other members of the body."""


class Page(msgspec.Struct, frozen=True):
    """total: rows of the whole table; None: these are all."""

    texts: Sequence[bytes]
    total: int | None = None

    def body(self, frame: bytes, member: bytes) -> bytes:
        """Returns the body: its JSON without rows, with the rows in the empty object `member`."""
        head, tail = frame.split(b'"%b":{}' % member)
        return b'%b"%b":{%b}%b' % (head, member, b",".join(self.texts), tail)


def page_of(
    table: EncodedRows, what: str, *, seq: int | None, count_max: int | None, version: str | None
) -> Page:
    """Returns the whole table if it fits, else the requested page. seq, count_max, version: of the
    request; None: without a page. Raises CommandError with the limit: neither fits."""
    if table.text_bytes <= ANSWER_BYTES_MAX:
        return Page(table.texts)
    total = len(table.names)
    if seq is None or count_max is None or count_max <= 0:
        raise CommandError(
            ResponseCode.SYSTEM_ERROR,
            f"the {total} {what} take {table.text_bytes} bytes, and an answer has at most "
            f"{ANSWER_BYTES_MAX}: ask for pages, as programs of RocketMQ 5.3.4 do",
        )
    start = max(seq, 0) if _is(version, table.version) else 0
    end = start + count_max
    if end == total - 1:
        end = total  # RocketMQ's readers consider a table complete when one row is missing (#11041)
    texts = table.texts[start:end]
    size = sum(map(len, texts)) + len(texts)
    if size > ANSWER_BYTES_MAX:
        raise CommandError(
            ResponseCode.SYSTEM_ERROR,
            f"{len(texts)} {what} take {size} bytes, and an answer has at most {ANSWER_BYTES_MAX}: "
            "ask for smaller pages",
        )
    return Page(texts, total)


def _is(text: str | None, version: DataVersion) -> bool:
    try:
        return text is not None and DataVersion.model_validate_json(text) == version
    except ValidationError:
        return False
