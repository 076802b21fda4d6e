"""Broker registration: a broker negotiates a brokerId with the controller once, and keeps it for life.

    INITIAL --next id--> (write .broker.meta.temp) --> CREATE_TEMP_METADATA_FILE_DONE
    CREATE_TEMP_METADATA_FILE_DONE --applied--> (rename to .broker.meta) --> CREATE_METADATA_FILE_DONE
    CREATE_TEMP_METADATA_FILE_DONE --refused--> (delete .broker.meta.temp) --> INITIAL
    CREATE_METADATA_FILE_DONE --registered--> REGISTERED

Pure: step() decides what to do next, controller_mode/broker_id_registration.py does it. Any reply may be
lost, and the process may die between any two steps: every effect is safe to repeat, because the
registerCheckCode on disk is the same at every attempt.

Invariant: past CREATE_TEMP_METADATA_FILE_DONE a broker owns exactly the id in .broker.meta. Source: RIP-44,
persistent unique BrokerId, steps 1-6 (RocketMQ drops the temp file on a timeout, and so leaks the id).
"""

from enum import Enum, auto
from typing import Any

import msgspec
from msgspec.structs import replace

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Unknown


class RegisterState(Enum):
    """The state of the registration. The files on disk show the first three states."""

    INITIAL = auto()
    CREATE_TEMP_METADATA_FILE_DONE = auto()
    CREATE_METADATA_FILE_DONE = auto()
    REGISTERED = auto()


class Effect(Enum):
    """The next action of the shell."""

    GET_NEXT_BROKER_ID = auto()
    WRITE_TEMP = auto()
    APPLY_BROKER_ID = auto()
    DELETE_TEMP = auto()
    REPLACE_TEMP_BY_META = auto()
    REGISTER_TO_CONTROLLER = auto()
    NOTHING = auto()


class Event(Enum):
    """The outcome of an effect."""

    OK = auto()  # the effect is known to have happened
    REFUSED = auto()  # the controller answered that this id belongs to another broker
    UNKNOWN = auto()  # timeout, reset, no leader: it may or may not have happened, so do it again


class Registration(msgspec.Struct, frozen=True):
    """The present state and effect. broker_id: the requested or owned id; None before the first answer."""

    state: RegisterState = RegisterState.INITIAL
    effect: Effect = Effect.GET_NEXT_BROKER_ID
    broker_id: int | None = None


S, E = RegisterState, Effect
TRANSITIONS: dict[tuple[RegisterState, Effect, Event], tuple[RegisterState, Effect]] = {
    (S.INITIAL, E.GET_NEXT_BROKER_ID, Event.OK): (S.INITIAL, E.WRITE_TEMP),
    (S.INITIAL, E.WRITE_TEMP, Event.OK): (S.CREATE_TEMP_METADATA_FILE_DONE, E.APPLY_BROKER_ID),
    (S.CREATE_TEMP_METADATA_FILE_DONE, E.APPLY_BROKER_ID, Event.OK): (
        S.CREATE_TEMP_METADATA_FILE_DONE,
        E.REPLACE_TEMP_BY_META,
    ),
    (S.CREATE_TEMP_METADATA_FILE_DONE, E.APPLY_BROKER_ID, Event.REFUSED): (
        S.CREATE_TEMP_METADATA_FILE_DONE,
        E.DELETE_TEMP,
    ),
    (S.CREATE_TEMP_METADATA_FILE_DONE, E.DELETE_TEMP, Event.OK): (S.INITIAL, E.GET_NEXT_BROKER_ID),
    (S.CREATE_TEMP_METADATA_FILE_DONE, E.REPLACE_TEMP_BY_META, Event.OK): (
        S.CREATE_METADATA_FILE_DONE,
        E.REGISTER_TO_CONTROLLER,
    ),
    (S.CREATE_METADATA_FILE_DONE, E.REGISTER_TO_CONTROLLER, Event.OK): (S.REGISTERED, E.NOTHING),
}
"""UNKNOWN is not in the table: it repeats the effect. Any other missing combination is a bug of ours."""


def step(now: Registration, event: Event, broker_id: int | None = None) -> Registration:
    """Returns what to do after `event`. broker_id: the id that GET_NEXT_BROKER_ID returned; None: keep the
    present one."""
    if event is Event.UNKNOWN:
        return now
    state, effect = TRANSITIONS[now.state, now.effect, event]
    return replace(
        now, state=state, effect=effect, broker_id=now.broker_id if broker_id is None else broker_id
    )


def recover(temp_broker_id: int | None, meta_broker_id: int | None) -> Registration:
    """Returns the state that the two files show after a restart. .broker.meta wins: it exists only after the
    id was granted."""
    if meta_broker_id is not None:
        return Registration(S.CREATE_METADATA_FILE_DONE, E.REGISTER_TO_CONTROLLER, meta_broker_id)
    if temp_broker_id is not None:
        return Registration(S.CREATE_TEMP_METADATA_FILE_DONE, E.APPLY_BROKER_ID, temp_broker_id)
    return Registration()


def event_of(effect: Effect, outcome: Ok[Any] | Failed | Unknown) -> Event:
    """Returns the event for an outcome. Only "this id is taken" is a refusal: a follower, a timeout or a busy
    controller proves nothing about the id."""
    match outcome:
        case Ok():
            return Event.OK
        case Failed(code=ResponseCode.CONTROLLER_BROKER_ID_INVALID) if effect is E.APPLY_BROKER_ID:
            return Event.REFUSED
        case _:
            return Event.UNKNOWN
