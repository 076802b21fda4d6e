"""Forwards requests that only a master can serve and that some clients do not repeat after a refusal.

While the mastership moves they wait, and go to the new master: its log has everything at the same offsets.
"""

from typing import Any

from broker.admission.send_forwarder import answer_of_master
from broker.put.handler_context import HandlerContext
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Ok, Operation, Wire


async def ask_master(
    context: HandlerContext,
    operation: Operation[Any, Any],
    header: Any,
    body: Wire | None = None,
    *,
    otherwise: ResponseCode = ResponseCode.SERVICE_NOT_AVAILABLE,
) -> bool:
    """Asks the master to serve a request. True: it did; False: this broker is master by now.

    header: has a field `forwarded`. A request that another broker has forwarded is refused: two brokers that
    each consider the other one the master would forward it endlessly. Raises CommandError if neither serves
    it, with the code `otherwise`: the answer of RocketMQ's slaves. Among brokers it is 14.
    """
    if header.forwarded:
        raise CommandError(ResponseCode.SERVICE_NOT_AVAILABLE, context.gate.unavailable)
    marked: Wire = header.model_copy(update={"forwarded": True})
    outcome = await answer_of_master(
        context.gate, context.forward_to_master, operation, marked, body, clock=context.now_ms
    )
    if outcome is None or isinstance(outcome, Ok):
        return outcome is not None
    raise CommandError(otherwise, outcome.remark or context.gate.unavailable)
