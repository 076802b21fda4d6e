"""The analytics data: the index of the fleet, and one group cut to a time. Files of keelmq/web/page_files.py.

The index is sent gzipped as it is. A group is found by its exact name in the index. Plain functions: FastAPI
runs them in threads. Imported only when HTTP is enabled: it needs FastAPI.
"""

import pathlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from keelmq.remoting.operation import Role
from keelmq.remoting.servers.http_answers import Problem
from keelmq.remoting.servers.http_call import needs
from keelmq.web.page_files import packed, unpacked
from keelmq.web.page_reader import (
    Generation,
    NoPagesError,
    PageFileError,
    PageFiles,
    RangeError,
    UnknownGroupError,
)
from keelmq.web.static_files import accepts_gzip
from namesrv.http.answers import SECURITY_HEADERS, known, refusal

JSON = "application/json"
TIME_CHARACTERS_MAX = 40
WHOLE = re.compile(r"-?\d{1,15}", re.ASCII)
TIME_HELP = "give ms since 1970 (1795390200000) or ISO 8601 (2026-11-23T10:30:00Z)"


REFUSALS: dict[int | str, dict[str, Any]] = {
    422: {"model": Problem, "description": "A parameter is too long"},
    404: {"model": Problem, "description": "There is none: the detail explains what to do"},
    400: {"model": Problem, "description": "A time or a step cannot be served: the detail explains which"},
}


def _time(name: str) -> Any:
    text = f"UTC, {TIME_HELP}; none: the last 24 hours"
    return Query(alias=name, max_length=TIME_CHARACTERS_MAX, description=text)


def pages_router(output_dir: pathlib.Path | None) -> APIRouter:
    """Returns the router. `output_dir`: analyticsOutputDir."""
    router = APIRouter(tags=["analytics"])
    files = None if output_dir is None else PageFiles(output_dir)
    reading = needs(Role.READ)

    def served(answer: Callable[[PageFiles, Generation], Response]) -> Response:
        if files is None or output_dir is None:
            return refusal(404, f"analyticsOutputDir is not set: {how_to('OUT')}, and set it to OUT")
        try:
            return answer(files, files.generation())
        except NoPagesError as error:
            return refusal(404, f"no {error} yet: {how_to(str(output_dir))}")
        except UnknownGroupError as error:
            return refusal(
                404, f"no group {error} in the analytics; GET /v1/analytics/fleet lists all of them"
            )
        except (RangeError, ValueError) as error:
            return refusal(400, str(error))
        except PageFileError as error:
            return refusal(500, str(error))

    @router.get(
        "/v1/analytics/fleet",
        summary="all groups: worst lag, time below minimum, incidents, and their heat map",
        response_class=Response,
        responses={404: REFUSALS[404]},
        openapi_extra=reading,
    )
    def fleet(request: Request) -> Response:
        """With `live`, the last hour by minute, where keelmq analytics stream runs."""

        def answer(files: PageFiles, generation: Generation) -> Response:
            at, content = files.live.merged(generation.packed_index, generation.current.generation)
            return _sent(request, f"f{generation.current.generation:x}-{at:x}", lambda: content)

        return served(answer)

    @router.get(
        "/v1/analytics/groups/{cluster}/{group:path}",
        summary="one group: lag, replicas, membership, changes and fail-overs",
        response_class=Response,
        responses=REFUSALS,
        openapi_extra=reading,
    )
    def of_group(
        cluster: Annotated[str, Path(description="cluster name", examples=["DefaultCluster"])],
        group: Annotated[str, Path(description="broker name; a slash in it is %2F", examples=["broker-a"])],
        request: Request,
        from_: Annotated[str | None, _time("from")] = None,
        to: Annotated[str | None, _time("to")] = None,
        step: Annotated[str | None, Query(max_length=20, description="least width of a window, ms")] = None,
    ) -> Response:
        """Serves the finest windows of at least `step` that make 2,000 points or fewer."""
        names = _names(request) or (cluster, group)

        def answer(files: PageFiles, generation: Generation) -> Response:
            times = {"from_ts": time_of("from", from_), "to_ts": time_of("to", to), "step_ms": step_of(step)}
            tag = _tag(files, generation, *times.values())

            def content() -> bytes:
                found = files.group(generation, *names, **times)  # type: ignore[arg-type]
                return packed(msgspec.json.encode(found), level=3)

            return _sent(request, f"g{tag}", content)

        return served(answer)

    return router


def _tag(files: PageFiles, generation: Generation, *times: int | None) -> str:
    live = files.live.head()
    age = 0 if live is None else live.computed_ts
    return "-".join(map(str, (f"{generation.current.generation:x}", age, *times)))


def how_to(output: str) -> str:
    """Returns the command that writes page files to the directory `output`."""
    return f"run `keelmq analytics run --input DIR --output {output}`"


def time_of(name: str, text: str | None) -> int | None:
    """Returns ms since 1970 of a parameter. Raises ValueError, with a text for the user."""
    if text is None or text == "":
        return None
    if WHOLE.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))  # a + in a query is a space
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a time: {TIME_HELP}") from None
    return int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1_000)


def step_of(text: str | None) -> int:
    """Returns the least width in ms; none given: 0. Raises ValueError, with a text for the user."""
    if text is None or text == "":
        return 0
    if not WHOLE.fullmatch(text) or int(text) < 0:
        raise ValueError(f"step={text!r} is not a width: give ms, 60000 for minutes or 3600000 for hours")
    return int(text)


def _names(request: Request) -> tuple[str, str] | None:
    """Returns the names as they are in the raw path, in which a slash of a name is %2F."""
    raw = bytes(request.scope.get("raw_path") or b"").split(b"?")[0].decode("ascii", "replace")
    parts = raw.partition("/v1/analytics/groups/")[2].split("/")
    return (unquote(parts[0]), unquote(parts[1])) if len(parts) == 2 else None


def _sent(request: Request, tag: str, packed_content: Callable[[], bytes]) -> Response:
    """The page keeps the ETag itself, so nothing is stored."""
    headers = {**SECURITY_HEADERS, "Cache-Control": "no-store", "ETag": f'"{tag}"', "Vary": "Accept-Encoding"}
    if answer := known(request, headers):
        return answer
    content = packed_content()
    if accepts_gzip(request):
        return Response(content, headers={**headers, "Content-Encoding": "gzip"}, media_type=JSON)
    return Response(unpacked(content), headers=headers, media_type=JSON)
