"""DeferredReplyPeer: holds the replies to sends with a new topic until the topic is on disk."""

from typing import Final

from broker.admission.fast_path import FastPathPeer
from broker.admission.pending_replies import with_code
from broker.metadata.topics import TopicTable
from keelmq.remoting.codes import ResponseCode

REMARK: Final = "the message is stored, and its new topic cannot be written to the disk"
_PREFIX_BYTES: Final = 8
_SUCCESS: Final = b'{"code":0,'


class DeferredReplyPeer:
    """Replaces the connection of such a send. If the topic cannot be written, a success becomes code 10."""

    def __init__(self, peer: FastPathPeer, topics: TopicTable) -> None:
        self._peer, self._topics = peer, topics
        self.connection_id, self.address, self.address_bytes = (
            peer.connection_id,
            peer.address,
            peer.address_bytes,
        )
        self.is_tls, self.certificate_names = peer.is_tls, peer.certificate_names

    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self._peer.is_closing()

    def is_paused(self) -> bool:
        return self._peer.is_paused()

    def send(self, frame: bytes) -> bool:
        self._topics.when_saved(lambda error: self._send(frame, error))
        return not self._peer.is_closing()

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        return self.send(b"".join(parts))

    def _send(self, frame: bytes, error: Exception | None) -> None:
        if error is not None and frame.startswith(_SUCCESS, _PREFIX_BYTES):
            frame = with_code(frame, ResponseCode.FLUSH_DISK_TIMEOUT, REMARK)
        if not self._peer.is_closing():
            self._peer.send(frame)
