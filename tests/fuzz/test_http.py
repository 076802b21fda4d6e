"""A slice of the HTTP fuzzer (`keelmq fuzz http` runs more), and a test of the fuzzer itself."""

import pytest

from keelmq.remoting.operation import Empty, OperationTable, Reply
from keelmq.remoting.operations.route import GET_SYSTEM_TOPIC_LIST
from keelmq.remoting.servers import http_answers
from tests.fuzz.http import fuzz_http


@pytest.mark.slow
def test_every_answer_is_as_the_openapi_says() -> None:
    report = fuzz_http(examples=2, seed=1)
    assert report.findings == []
    assert report.operations > 40
    assert {200, 400, 409, 422} <= report.statuses.keys(), report.line()


@pytest.mark.slow
def test_a_broken_handler_and_an_undocumented_status_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the tester."""
    bind = OperationTable.bind

    async def broken(request: Empty, call: object) -> Reply:
        raise ZeroDivisionError("bug")

    def bind_broken(table: OperationTable, operation: object, handler: object) -> None:
        bind(table, operation, broken if operation is GET_SYSTEM_TOPIC_LIST else handler)  # type: ignore[arg-type]

    monkeypatch.setattr(OperationTable, "bind", bind_broken)
    monkeypatch.delitem(http_answers.BODY_REFUSED, 422)
    report = fuzz_http(examples=1, seed=1, programs=["namesrv"])
    assert any(
        f"/v1/{GET_SYSTEM_TOPIC_LIST.name}" in each and "status 500" in each for each in report.findings
    )
    assert any("HTTPValidationError" in each for each in report.findings)
