"""What a container answers to requests that it refuses."""

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError


def refused(remark: str) -> CommandError:
    """Returns the error of a request that has changed nothing, or what the remark says."""
    return CommandError(ResponseCode.SYSTEM_ERROR, remark)


def one_line(error: Exception) -> str:
    """Returns the error's text, whose lines are joined."""
    return "; ".join(str(error).splitlines())
