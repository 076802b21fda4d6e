"""Both ends of the connection between a supervisor and a worker, over a socket pair in one process."""

import asyncio
import math
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from broker.container.core.frames import encode_frame
from broker.container.host import BrokerRefused
from broker.container.workers import link as link_module
from broker.container.workers.link import Link
from broker.container.workers.messages import (
    Brokers,
    Close,
    Command,
    DescribeWorker,
    Done,
    Leave,
    ListBrokers,
    MessageError,
    MetricsText,
    Ping,
    ReadMetrics,
    Start,
    Stop,
    WorkerState,
    from_supervisor,
    from_worker,
)
from broker.container.workers.metrics_text import to_families, to_text
from tests.support.worker_parts import InProcess, identity, setup, until


def start(name: str, does: str = "") -> Start:
    made = setup(name, does)
    return Start(identity=made.identity, config_path=made.config_path)


async def do(pair: InProcess, command: Command, deadline_ms: int = 5_000) -> None:
    await pair.link.request(command, Done, deadline_ms=deadline_ms, purpose=f"{command.kind} it")


async def test_commands_and_answers() -> None:
    async with InProcess() as pair:
        await pair.begin()
        await do(pair, start("a"))
        listed = await pair.link.request(ListBrokers(), Brokers, deadline_ms=5_000, purpose="list")
        assert [each.canonical_name for each in listed.brokers] == ["c_a_0"]
        state = await pair.link.request(DescribeWorker(), WorkerState, deadline_ms=5_000, purpose="it")
        assert (state.worker.number, state.worker.cpu_millis) == (1, 7)
        await do(pair, Stop(identity=identity("a"), hand_over=True))
        await do(pair, Leave())
        await do(pair, Close())
        await pair.serving
        assert pair.host.calls == ["start a", "stop a hand over", "leave", "close"]


async def test_refusals_keep_their_text() -> None:
    async with InProcess() as pair:
        await pair.begin()
        with pytest.raises(BrokerRefused, match=r"^a: the port is in use$"):
            await do(pair, start("a", "refuse"))
        with pytest.raises(BrokerRefused, match=r"^start: KeyError: 'a bug'; the log has the traceback$"):
            await do(pair, start("a", "bug"))
        with pytest.raises(BrokerRefused, match="its store does not close"):
            await do(pair, Stop(identity=identity("sticks"), hand_over=False))
        await do(pair, start("a"))


async def test_a_bad_configuration_is_refused() -> None:
    async with InProcess() as pair:
        with pytest.raises(BrokerRefused, match="listenPort is not a number"):
            await pair.begin(bad="listenPort is not a number")
        await pair.serving


async def test_nothing_before_the_begin_and_only_one() -> None:
    async with InProcess() as pair:
        with pytest.raises(BrokerRefused, match="starting or stopping"):
            await do(pair, start("a"))
        await pair.begin()
        with pytest.raises(BrokerRefused, match="begun already"):
            await pair.begin()


async def test_a_long_start_does_not_delay_a_ping() -> None:
    async with InProcess() as pair:
        await pair.begin()
        hanging = asyncio.create_task(do(pair, start("a", "hang")))
        await until(lambda: pair.host.calls)
        await do(pair, Ping())
        hanging.cancel()
        await until(lambda: pair.host.calls == ["start a", "gave up a"])
        await do(pair, start("b"))


async def test_the_worker_refuses_what_takes_too_long() -> None:
    async with InProcess() as pair:
        await pair.begin()
        with pytest.raises(BrokerRefused, match=r"^start: not done within 0\.02 s, and given up$"):
            await do(pair, start("a", "hang"), deadline_ms=20)
        assert pair.host.calls == ["start a", "gave up a"]


async def test_commands_for_one_broker_run_one_after_the_other() -> None:
    async with InProcess() as pair:
        await pair.begin()
        hanging = asyncio.create_task(do(pair, start("a", "hang")))
        await until(lambda: pair.host.calls)
        stop = asyncio.create_task(do(pair, Stop(identity=identity("a"), hand_over=False)))
        await do(pair, start("b"))
        assert not stop.done()
        hanging.cancel()
        await stop
        assert pair.host.calls == ["start a", "start b", "gave up a", "stop a"]


async def test_without_its_supervisor_a_worker_stops_its_brokers() -> None:
    async with InProcess() as pair:
        await pair.begin()
        await do(pair, start("a"))
        hanging = asyncio.create_task(do(pair, start("b", "hang")))
        await until(lambda: "start b" in pair.host.calls)
        pair.link.channel.abort("killed")
        async with asyncio.timeout(10):
            await pair.serving
        assert pair.host.calls[2:] == ["gave up b", "close", "stop a"]
        with pytest.raises(BrokerRefused, match="ended before it had answered: killed"):
            await hanging


async def test_a_supervisor_that_goes_before_the_begin() -> None:
    async with InProcess() as pair:
        pair.link.channel.abort("killed")
        async with asyncio.timeout(10):
            await pair.serving


async def test_a_close_that_nobody_waits_for_goes_on() -> None:
    async with InProcess() as pair:
        await pair.begin()
        await do(pair, start("a"))
        closing = asyncio.create_task(do(pair, Close()))
        await until(lambda: "close" in pair.host.calls)
        closing.cancel()
        pair.link.channel.abort("gone")
        await pair.serving
        assert pair.host.calls == ["start a", "close", "stop a"]


async def test_signals_wait_for_the_supervisor() -> None:
    """A hand-over of another worker may take its time; orders that are open count as long as they are."""
    async with InProcess(signal_grace_s=0.05) as pair:
        await pair.begin()
        pair.host.may_leave.clear()
        leaving = asyncio.create_task(do(pair, Leave()))
        await pair.host.is_leaving.wait()
        pair.server.signalled()
        await until_later(0.15)
        assert not pair.serving.done()
        pair.host.may_leave.set()
        await leaving
        async with asyncio.timeout(10):
            await pair.serving
        assert pair.host.calls == ["leave", "close"]


async def until_later(seconds: float) -> None:
    """Some time of the event loop's clock."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    await until(lambda: loop.time() >= end)


async def test_events_come_before_later_answers() -> None:
    async with InProcess() as pair:
        await pair.begin()
        pair.host.observer.broker_failed(identity("a"), "its disk is gone")
        pair.host.observer.broker_restarted(identity("a"))
        await do(pair, Ping())
        assert [type(event).__name__ for event in pair.events] == ["BrokerFailed", "BrokerRestarted"]


async def test_metrics_come_as_they_are() -> None:
    histogram = HistogramMetricFamily("rocketmq_h", "latency", labels=["node"])
    histogram.add_metric(["a"], [("1", 2), ("+Inf", 3)], 4.5)
    counter = CounterMetricFamily("rocketmq_in_total", 'messages "in"\nof it', labels=["topic"])
    counter.add_metric(['x"\n\\y'], 12)
    gauge = GaugeMetricFamily("rocketmq_lag", "lag", labels=["node"])
    for name, value in {"a": math.inf, "b": -1.5}.items():
        gauge.add_metric([name], value)
    async with InProcess() as pair:
        await pair.begin()
        pair.host.families = [histogram, counter, gauge]
        answer = await pair.link.request(ReadMetrics(), MetricsText, deadline_ms=5_000, purpose="it")
    assert to_families(answer.text) == [histogram, counter, gauge]
    assert to_text(to_families(answer.text)) == answer.text


async def test_an_answer_that_is_too_large_is_a_refusal() -> None:
    async with InProcess(bytes_max=4_096) as pair:
        await pair.begin()
        pair.host.families = [GaugeMetricFamily(f"lag_{number}", "lag", value=1) for number in range(200)]
        with pytest.raises(BrokerRefused, match="the answer is too large"):
            await pair.link.request(ReadMetrics(), MetricsText, deadline_ms=5_000, purpose="it")
        await do(pair, Ping())


async def test_a_wrong_answer_ends_the_link() -> None:
    async with InProcess() as pair:
        await pair.begin()
        with pytest.raises(BrokerRefused, match="answered with done, and is ended"):
            await pair.link.request(Ping(), Brokers, deadline_ms=5_000, purpose="it")
        await pair.link.has_ended.wait()


# -- a worker that is broken, hangs, or was killed -----------------------------------------------------------


async def linked() -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    link = Link("worker 1", lambda event: None, 4_096)
    await asyncio.get_running_loop().create_unix_connection(lambda: link.channel, sock=ours)
    return link, theirs


async def test_a_worker_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "ANSWER_GRACE_MS", 20)
    link, theirs = await linked()
    with theirs, pytest.raises(BrokerRefused, match="does not answer, and is ended"):
        await link.request(Ping(), Done, deadline_ms=1, purpose="it")
    await link.has_ended.wait()
    assert link.is_given_up
    assert link.reason == "it did not answer within 21 ms (it)"


async def test_open_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "REQUESTS_MAX", 2)
    link, theirs = await linked()
    waiting = [
        asyncio.create_task(link.request(Ping(), Done, deadline_ms=5_000, purpose="it")) for _ in range(2)
    ]
    await asyncio.sleep(0)
    with pytest.raises(BrokerRefused, match="2 open requests"):
        await link.request(Ping(), Done, deadline_ms=5_000, purpose="it")
    theirs.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(each) for each in outcomes] == [
        "worker 1 ended before it had answered: it closed the connection"
    ] * 2
    with pytest.raises(BrokerRefused, match="worker 1 does not run: it closed the connection"):
        await link.request(Ping(), Done, deadline_ms=5_000, purpose="it")


async def test_a_worker_that_is_killed_while_it_writes() -> None:
    link, theirs = await linked()
    asking = asyncio.create_task(link.request(Ping(), Done, deadline_ms=5_000, purpose="it"))
    await asyncio.sleep(0)
    theirs.send(encode_frame(b'{"kind": "answer"}')[:-3])
    theirs.close()
    with pytest.raises(BrokerRefused, match="closed the connection in the middle of a message"):
        await asking
    assert not link.is_given_up


GARBAGE = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.binary(min_size=1, max_size=60).map(encode_frame),
    st.sampled_from(
        [
            b"{}",
            b"[]",
            b'{"kind": "answer"}',
            b'{"kind": "answer", "id": 1, "result": {"kind": "done", "more": 1}}',
            b'{"kind": "broker_failed", "identity": ["c"], "reason": ""}',
            b"\xff" * 9,
        ]
    ).map(encode_frame),
)


@given(st.lists(GARBAGE, min_size=1, max_size=4))
def test_garbage_of_a_worker_fails_the_request_and_nothing_else(pieces: list[bytes]) -> None:
    async def scenario() -> None:
        link, theirs = await linked()
        asking = asyncio.create_task(link.request(Ping(), Done, deadline_ms=5_000, purpose="it"))
        await asyncio.sleep(0)
        with theirs:
            for piece in pieces:
                theirs.send(piece)
        with pytest.raises(BrokerRefused, match=r"^worker 1 "):
            async with asyncio.timeout(10):
                await asking
        assert link.has_ended.is_set()

    asyncio.run(scenario())


@given(GARBAGE)
def test_garbage_is_no_message(payload: bytes) -> None:
    for parse in (from_worker, from_supervisor):
        with pytest.raises(MessageError):
            parse(payload)
