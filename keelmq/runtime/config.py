"""Reads RocketMQ's key=value configuration into frozen models; an error names the line and the remedy.

Order: defaults below securityPath, then file, then environment (KEELMQ_<camelCaseKey>), then overrides
(--set key=value); the last one wins. An unknown key is an error: a typo must not start a server with a
default.
"""

import errno
import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar, get_args

import msgspec
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from keelmq.upstream.keys import Foreign, look_up, nearest

ENVIRON_PREFIX = "KEELMQ_"
LOOP_BUDGET = "KEELMQ_LOOP_BUDGET_MS"
"""CPU time in ms that a turn of the event loop may take without a line in the log; for tests."""
OF_TOOLS = frozenset({"KEELMQ_CREDENTIALS", "KEELMQ_ACCESS_KEY", "KEELMQ_SECRET_KEY", LOOP_BUDGET})
"""Variables of mqadmin, keelmq and tests: no program has such a setting."""
SECURITY_PATH = "securityPath"
SECURITY_FILE = "security.conf"
"""Defaults for every program, below securityPath."""
SHOWN_CHARACTERS = 200
FILE_BYTES_MAX = 4_194_304
"""Limit of a file that a command line or a setting names: /dev/zero has no end."""
REQUEST_BYTES_MAX = 65_536
"""Limit of key=value lines in a request. All keys of a broker have some 15,000."""
UNKNOWN_KEYS_MAX = 5
"""Unknown keys of a request that an error names: each is compared with all known ones."""


_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")

C = TypeVar("C", bound="Config")


class ConfigError(Exception):
    """The program cannot run as configured. The text is for the operator: one line per problem."""


def why_refused(error: OSError | UnicodeError) -> str:
    """Returns why a port cannot be opened or reached: only the reason, without the address that asyncio
    adds."""
    if isinstance(error, UnicodeError):
        return "not a host name"
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)  # resolver errors have negative numbers


def in_words(error: Exception) -> str:
    """Returns the text to print for an error: for a file its name and the reason, without the error
    number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def read_named(path: Path) -> bytes:
    """Returns the content of a file that a command line or a setting names. Raises OSError, also if it has
    more than FILE_BYTES_MAX."""
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has more than {FILE_BYTES_MAX} bytes", str(path))
    return content


def home_path(path: Path | None) -> Path | None:
    """Returns the path with ~ and ~user replaced. ValueError, as validators expect: the home directory does
    not exist."""
    try:
        return None if path is None else path.expanduser()
    except RuntimeError:
        raise ValueError("there is no such home directory; write the full path") from None


class Config(BaseModel):
    """Base of every program's settings: camelCase keys, frozen, unknown keys refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        validate_default=True,
        # A traceback shows the text of the error, which would have a secret in it.
        hide_input_in_errors=True,
        # A program's model has a dozen bases, which are never validated by themselves.
        defer_build=True,
    )

    DEFAULTS: ClassVar[tuple[str, ...]] = ()
    """Names of the files below securityPath with defaults of this model, the weakest first."""
    UPSTREAM: ClassVar[frozenset[str]] = frozenset()
    """RocketMQ's classes whose keys a file of this program may have."""

    @field_validator("*", mode="before")
    @classmethod
    def _check_path(cls, value: object, info: ValidationInfo) -> object:
        """Refuses an empty path, which must not mean the current directory, one with a variable, and one of
        Windows, which would be a directory below the current one."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if kind not in (Path, Path | None):
            return value
        if isinstance(value, str) and "$" in value:
            raise ValueError("variables are not replaced: write the path")
        if isinstance(value, str) and os.name == "posix" and _DRIVE.match(value):
            raise ValueError("this is a path of Windows: write one of this machine")
        if value != "":
            return value
        if kind is Path:
            raise ValueError("is empty: write a path, or leave the key out")
        return None

    @classmethod
    def foreign(cls, key: str, value: str) -> Foreign | None:
        """Returns what a key that is not a field means in this program alone; None: what it means in all."""
        return None

    def become(self, other: Self) -> None:
        """Takes over the other's values: the only way in which a configuration changes. Code that holds this
        object and reads a key when needed follows the change."""
        self.__dict__.update(other.__dict__)


class _Setting(msgspec.Struct, frozen=True):
    value: str
    source: str  # "broker.conf line 3", "environment KEELMQ_listenPort", "--set"


def load_config(
    *models: type[Config],
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
    skipped: Collection[str] = (),
) -> tuple[Config, ...]:
    """Returns one instance per model, each with the keys that it knows. skipped: keys that are read from
    overrides only. Raises ConfigError."""
    settings: dict[str, _Setting] = {}
    known = {key for model in models for key in _keys(model)}
    unknown: list[str] = []
    for key, setting in _settings(path, environ, overrides, models):
        if key in skipped and key not in overrides:
            continue
        if key in known:
            settings[key] = setting
            continue
        foreign = _foreign(models, key, setting)
        if foreign is None:
            unknown.append(_unknown_key(key, setting, models))
        elif foreign.is_refused:
            why = _slip(setting.value) or foreign.why  # "false # off" asks for nothing
            unknown.append(f"{key} in {setting.source}: {why}")  # its value may be a secret
    if unknown:
        raise ConfigError("\n".join(unknown))
    return _build(models, settings)


def without_effect(
    *models: type[Config], path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> list[str]:
    """Returns a line for each reason why load_config accepts keys that have no effect here, with these keys.
    Raises ConfigError."""
    known = {key for model in models for key in _keys(model)}
    found: dict[str, list[str]] = {}
    for key, setting in _settings(path, environ, overrides, models):
        foreign = _foreign(models, key, setting) if key not in known else None
        if foreign is not None and key not in found.setdefault(foreign.why, []):
            found[foreign.why].append(key)
    return [f"without effect here: {', '.join(keys)} ({why})" for why, keys in found.items()]


def _foreign(models: Iterable[type[Config]], key: str, setting: _Setting) -> Foreign | None:
    """Returns what a key that is no field of the models means. None: it is unknown."""
    models = tuple(models)
    own = (model.foreign(key, setting.value) for model in models)
    found = next((foreign for foreign in own if foreign is not None), None)
    return found or look_up(key, setting.value, _upstream(models))


def _upstream(models: Iterable[type[Config]]) -> frozenset[str]:
    """Returns RocketMQ's classes whose keys a file of the program with these models may have."""
    return frozenset(name for model in models for name in model.UPSTREAM)


def value_of(
    key: str, *, path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> str | None:
    """Returns the value of one key by load_config's rules, for what must be known before the models are.
    None: it is not set. Raises ConfigError."""
    setting = dict(_settings(path, environ, overrides)).get(key)
    return None if setting is None else setting.value


_COMMENT: Final = re.compile(r"\s#")
_QUOTED: Final = re.compile(r"""(["']).*\1""")
_VARIABLE: Final = re.compile(r"\$\{.*\}|\{\{.*\}\}")
"""Of a shell or Java, and of a template."""


def _slip(value: str) -> str | None:
    """Returns why a text is not the value that its author means; None: nothing suggests that."""
    if _QUOTED.fullmatch(value):
        return "quotes would be a part of the value: leave them out"
    if _COMMENT.search(value):
        return "what follows # would be a part of the value: a comment needs a line of its own"
    if _VARIABLE.search(value):
        return "variables are not replaced: write the value"
    return None


def setting_sources(
    *models: type[Config], path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> dict[str, str]:
    """Returns the source of each key that is set, by load_config's rules. Raises ConfigError."""
    return {key: setting.source for key, setting in _settings(path, environ, overrides, models)}


def parse_settings(text: str, source: str, *, shows_lines: bool = True) -> dict[str, str]:
    """Returns key=value lines as a dict; the last one of a key wins. `source` names the text in a
    ConfigError; shows_lines=False: which does not repeat the line, as the text may be a secret."""
    return {key: setting.value for key, setting in _text_settings(text, source, shows_lines=shows_lines)}


def parse_request(body: bytes) -> dict[str, str]:
    """Returns the key=value lines of a request. Raises ConfigError."""
    if len(body) > REQUEST_BYTES_MAX:
        raise ConfigError(f"the request has {len(body)} bytes; {REQUEST_BYTES_MAX} is the limit")
    try:
        return parse_settings(body.decode(), "the request")
    except UnicodeDecodeError as error:
        raise ConfigError(str(error)) from error


def with_settings(config: C, settings: Mapping[str, str], source: str) -> C:
    """Returns `config` with some keys changed, validated as a whole. ConfigError: an unknown key, a bad
    value."""
    model = type(config)
    changes = {key: _Setting(value, source) for key, value in settings.items()}
    unknown = []
    for key in sorted(settings.keys() - _keys(model))[:UNKNOWN_KEYS_MAX]:
        foreign = _foreign([model], key, changes[key])
        why = f"{key} has no effect here: {foreign.why}" if foreign is not None else ""
        unknown.append(why or _unknown_key(key, changes[key], [model]))
    if unknown:
        raise ConfigError("\n".join(unknown))
    try:
        return model.model_validate({**config.model_dump(by_alias=True), **settings})
    except ValidationError as error:
        problems = [_problem(model, detail, changes, config) for detail in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from error


def to_properties(config: BaseModel) -> str:
    """Returns key=value text, sorted by key; secrets are masked, keys without a value left out."""
    lines = []
    for key, value in sorted(config.model_dump(by_alias=True, mode="json", exclude_none=True).items()):
        lines.append(f"{key}={_text(value)}\n")
    return "".join(lines)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def secret_keys(*models: type[Config]) -> set[str]:
    """Returns the keys whose value is a secret: it is masked wherever settings are shown."""
    return {
        field.alias or name
        for model in models
        for name, field in model.model_fields.items()
        if SecretStr in (field.annotation, *get_args(field.annotation))
    }


def _keys(model: type[Config]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def _settings(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
    models: Iterable[type[Config]] = (),
) -> list[tuple[str, _Setting]]:
    """Returns the settings of all sources, the weakest first. models: whose defaults are read."""
    found = [] if path is None else list(_file_settings(path))
    for name in sorted(environ):
        if name.startswith(ENVIRON_PREFIX) and name not in OF_TOOLS:
            found.append((name.removeprefix(ENVIRON_PREFIX), _Setting(environ[name], f"environment {name}")))
    found += [(key, _Setting(value, f"--set {key}")) for key, value in overrides.items()]
    return [*_defaults_below(dict(found).get(SECURITY_PATH), models), *found]


def _defaults_below(
    security_path: _Setting | None, models: Iterable[type[Config]]
) -> Iterator[tuple[str, _Setting]]:
    """Yields the settings of the files that the models name. ${securityPath} in a value is the directory, so
    that it can be moved."""
    if security_path is None or not security_path.value:
        return
    try:
        directory = home_path(Path(security_path.value)) or Path()
    except ValueError as error:
        raise ConfigError(f"{SECURITY_PATH} in {security_path.source}: {error}") from error
    for name in dict.fromkeys(each for model in models for each in model.DEFAULTS):
        if name != SECURITY_FILE and not os.path.exists(directory / name):
            continue
        try:
            settings = list(_file_settings(directory / name))
        except ConfigError as error:
            hint = "; `keelmq init-security` makes it" if name == SECURITY_FILE else ""
            raise ConfigError(f"{SECURITY_PATH} in {security_path.source}: {error}{hint}") from error
        for key, setting in settings:
            if key == SECURITY_PATH:
                raise ConfigError(f"{setting.source}: {SECURITY_PATH} belongs in the program's own file")
            yield key, _Setting(setting.value.replace("${securityPath}", str(directory)), setting.source)


def _file_settings(path: Path) -> Iterator[tuple[str, _Setting]]:
    try:
        text = _pipe_text(path) if path.is_fifo() else read_named(path).decode()
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)[:SHOWN_CHARACTERS]}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: {not_utf8(error)}") from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError(f"cannot read {_short(str(path))}: {error}") from error
    yield from _text_settings(text, str(path))


@functools.cache
def _pipe_text(path: Path) -> str:
    """A pipe, as of `-c <(...)`, can be read only once, and settings are read several times."""
    return read_named(path).decode()


_ESCAPED: Final = re.compile(r"(?<!\\)\\([:=#!])")
"""What Java's Properties.store writes for these characters. A backslash in front of another one stays: paths
and secrets have some."""


def _text_settings(text: str, source: str, *, shows_lines: bool = True) -> Iterator[tuple[str, _Setting]]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, equals, value = stripped.partition("=")
        shown = f": {_short(stripped)}" if shows_lines else ""
        if not equals or not key.strip():
            raise ConfigError(f"{source} line {number}{shown} is not key=value")
        if "\0" in stripped:
            raise ConfigError(f"{source} line {number}{shown} has a NUL character")
        yield key.strip(), _Setting(_ESCAPED.sub(r"\1", value.strip()), f"{source} line {number}")


_WORD: Final = re.compile(r"[A-Za-z][\w.]*\w")


def not_utf8(error: UnicodeDecodeError) -> str:
    """Returns which line of a file is not UTF-8, and what to do about it."""
    number = error.object.count(b"\n", 0, error.start) + 1
    return f"line {number} is not UTF-8 text; convert the file, such as with iconv -f GBK -t UTF-8"


def _short(text: str) -> str:
    """Shortens a line for an error text: a line of garbage may be long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")


def _unknown_key(key: str, setting: _Setting, models: Iterable[type[Config]]) -> str:
    models = tuple(models)
    close = nearest(key, set[str]().union(*(_keys(model) for model in models)), _upstream(models))
    hint = f"; did you mean {close!r}?" if close else ""
    return f"unknown key {key!r} in {setting.source}{hint}"


def _build(models: tuple[type[Config], ...], settings: Mapping[str, _Setting]) -> tuple[Config, ...]:
    configs: list[Config] = []
    secret = secret_keys(*models)  # these may have any characters
    slips = {key: _slip(setting.value) for key, setting in settings.items() if key not in secret}
    problems = [
        f"{key} = {_shown(secret, key, settings[key].value)!r} in {settings[key].source}: {why}"
        for key, why in slips.items()
        if why
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    for model in models:
        values = {key: settings[key].value for key in _keys(model) & settings.keys()}
        try:
            configs.append(model.model_validate(values))
        except ValidationError as error:
            problems += [_problem(model, detail, settings) for detail in error.errors()]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return tuple(configs)


def _problem(
    model: type[Config], detail: Any, settings: Mapping[str, _Setting], config: Config | None = None
) -> str:
    """Returns one line: key, value, source, and what is wrong; of a relation between keys, of all of them.
    config: as in _stated()."""
    wrong = str(detail["msg"]).removeprefix("Value error, ")
    if not detail["loc"]:
        return wrong + _stated(model, wrong, settings, config)
    key = str(detail["loc"][0])
    setting = settings.get(key)
    if detail["type"] == "missing":
        return f"{key} is required and not set"
    if setting is None:
        return f"{key} (default): {wrong}"
    return f"{key} = {_shown(secret_keys(model), key, setting.value)!r} in {setting.source}: {wrong}"


def _stated(model: type[Config], wrong: str, settings: Mapping[str, _Setting], config: Config | None) -> str:
    """Returns where the keys of a relation that does not hold have their values, and which one to change.
    config: the one that `settings` change; None: they are all that is set."""
    fields = {field.alias or name: (name, field) for name, field in model.model_fields.items()}
    keys = [key for key in dict.fromkeys(_WORD.findall(wrong)) if key in fields]
    stated, others, left = list[str](), list[str](), list[str]()
    for key in keys:
        name, field = fields[key]
        if (setting := settings.get(key)) is not None:
            stated.append(f"{key} = {_shown(secret_keys(model), key, setting.value)!r} in {setting.source}")
            continue
        held = field.default if config is None else getattr(config, name)
        value = "" if held is None else _text(held)
        when = "by default" if config is None else "now"
        others.append(
            f"{key} is {_shown(secret_keys(model), key, value)} {when}" if value else f"{key} is not set"
        )
        left.append(key)
    if not stated:
        return ""
    advice = "change one of them" if len(stated) > 1 else "change it"
    if len(stated) == 1 and left:
        advice += f", or set {left[0]}"
    return f" ({'; '.join([*stated, *others])}: {advice})"


def _shown(secret: Collection[str], key: str, value: str) -> str:
    """`secret`: the keys that are. A file of a secret may by mistake be the secret itself."""
    is_secret = key in secret or "secret" in key.lower()
    return "**********" if is_secret else value
