"""Times of protobuf as ms, and back. Pure. Those of a request may be any numbers, which protobuf's own
conversions refuse with exceptions."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def ms_of(value: Duration | Timestamp) -> int:
    """Returns the value in ms."""
    return value.seconds * 1_000 + value.nanos // 1_000_000


def timestamp(ms: int) -> Timestamp:
    """Returns a wall-clock time."""
    return Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def duration(ms: int) -> Duration:
    """Returns a time span."""
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)
