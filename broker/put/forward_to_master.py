"""Requests that only a master can serve, and that some clients forget when they are refused: while the
mastership moves they wait, and go to the new master, whose log has everything at the same offsets.
"""

import asyncio
from typing import Any, Final

from broker.handlers.parts import BrokerParts
from broker.handlers.writer import not_available
from broker.late_sends import NOT_YET
from broker.pending import HAND_OVER
from remoting.codes import ResponseCode
from remoting.operation import CommandError, Failed, Ok, Operation, Wire

MOVE_MS_MAX: Final = 2_000
"""Below the three seconds that clients wait."""
MOVE_STEP_MS: Final = 10


async def ask_master(
    parts: BrokerParts,
    operation: Operation[Any, Any],
    header: Any,
    *,
    otherwise: ResponseCode = ResponseCode.SERVICE_NOT_AVAILABLE,
) -> bool:
    """header has a field `forwarded`: two brokers that believe in each other would play ping-pong. True: the
    master did it; False: this broker is master by now. CommandError: neither; `otherwise` is what RocketMQ's
    slaves answer, among brokers it is 14."""
    gate, deadline_ms = parts.gate, parts.now_ms() + MOVE_MS_MAX
    marked: Wire = header.model_copy(update={"forwarded": True})
    while not gate.writable:
        outcome = None if header.forwarded else await parts.hand_on(operation, marked)
        if isinstance(outcome, Ok):
            return True
        moves = gate.is_closed_by(HAND_OVER) or (isinstance(outcome, Failed) and outcome.code in NOT_YET)
        if not moves or header.forwarded or parts.now_ms() >= deadline_ms:
            remark = outcome.remark if outcome is not None else not_available(gate)
            code = ResponseCode.SERVICE_NOT_AVAILABLE if header.forwarded else otherwise
            raise CommandError(code, remark)
        await asyncio.sleep(MOVE_STEP_MS / 1000)
    return False
