"""Checks of what applications pass to the clients: errors that name the field and the value.

Values in; TypeError and ValueError out. Each check returns nothing. bool is no int
here, and str is no sequence of str.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Final

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
SHOWN_CHARS: Final = 60


def wrong_type(name: str, value: object, wanted: str) -> TypeError:
    """Returns the error of a field with a value of another type."""
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}..."
    return TypeError(f"{name} is {shown} ({type(value).__name__}): it must be {wanted}")


def check_text(name: str, value: object, *, optional: bool = False) -> None:
    """A str that UTF-8 can carry; None if it is optional."""
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise wrong_type(name, value, "a str or None" if optional else "a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            shown = ascii(value[:SHOWN_CHARS])
            raise ValueError(f"{name} is {shown}: UTF-8 cannot carry half a character") from None


def check_int(
    name: str, value: object, *, least: int = 0, most: int = INT64_MAX, optional: bool = False
) -> None:
    """An int from `least` to `most`; None if it is optional."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(name, value, "an int or None" if optional else "an int")
    if value < least:
        bound = "above 0" if least == 1 else f"{least} or more"
        raise ValueError(f"{name} is {value}: it must be {bound}")
    if value > most:
        raise ValueError(f"{name} is {value}: it must be {most} at most")


def check_one_of(name: str, value: object, *types: type, optional: bool = False) -> None:
    """An instance of one of the types; None if it is optional."""
    if (value is None and optional) or isinstance(value, types):
        return
    wanted = " or ".join(("an " if each.__name__[0] in "AEIO" else "a ") + each.__name__ for each in types)
    raise wrong_type(name, value, f"{wanted} or None" if optional else wanted)


def check_body(name: str, value: object) -> None:
    """bytes, bytearray or memoryview."""
    if not isinstance(value, bytes | bytearray | memoryview):
        what = "str: use text.encode()" if isinstance(value, str) else type(value).__name__
        raise TypeError(f"{name} is bytes, not {what}")


def check_texts(name: str, value: object) -> None:
    """A str, or a list or tuple of them."""
    if isinstance(value, str):
        check_text(name, value)
        return
    if isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise wrong_type(name, value, "a str or a sequence of str")
    for index, each in enumerate(value):
        check_text(f"{name}[{index}]", each)


def check_pairs(name: str, value: object) -> None:
    """A mapping of str to str."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, "a mapping of str to str")
    for key, text in value.items():
        if not isinstance(key, str):
            raise wrong_type(f"a name in {name}", key, "a str")
        check_text(f"{name}[{key!r}]", text)


def check_callable(name: str, value: object, *, plain: bool = False, optional: bool = False) -> None:
    """A function. `plain`: no coroutine function, whose body would never run; None if it is optional."""
    if value is None and optional:
        return
    if not callable(value):
        raise wrong_type(name, value, "a function or None" if optional else "a function")
    if plain and inspect.iscoroutinefunction(value):
        raise wrong_type(name, value, "a plain function, not a coroutine function (async def)")


def check_instances(name: str, value: object, kind: type) -> None:
    """An iterable of instances of a type; it must be one that can be read twice."""
    if not isinstance(value, list | tuple | set | frozenset):
        raise wrong_type(name, value, f"a list or tuple of {kind.__name__}")
    for index, each in enumerate(value):
        check_one_of(f"{name}[{index}]", each, kind)
