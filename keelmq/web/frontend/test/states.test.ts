import { describe, expect, test } from "vitest";
import { isNotReplica, memberStates } from "../src/analytics/states";

type Span = readonly [from: number, to: number, state: string];
type Numbers = readonly (number | null)[];

const RANGE = { from: 0, to: 80, window: 10 };

function member(broker_id: number, ...spans: Span[]) {
  return { broker_id, spans: spans.map(([from, to, state]) => ({ from, to, state })) };
}

function lag(broker_id: number, samples: Numbers, last_ack_offset: Numbers, bytes_max: Numbers) {
  return { broker_id, ts: samples.map((_, i) => 10 * i), samples, last_ack_offset, bytes_max };
}

function states(members: ReturnType<typeof member>[], lags: ReturnType<typeof lag>[], id: number): Span[] {
  const found = memberStates(members, lags, RANGE).find((each: { broker_id: number }) => each.broker_id === id);
  return found.spans.map((span: { from: number; to: number; state: string }) => [span.from, span.to, span.state]);
}

describe("what a replica was", () => {
  test("why it is out", () => {
    const members = [
      member(1, [0, 80, "master"]),
      member(2, [0, 15, "in_sync"], [15, 75, "out"], [75, 80, "in_sync"]),
    ];
    const measured = lag(2, [60, 60, 60, 60, 0, null, 60, 60], [5, 5, 5, 9, 9, null, 11, 12], [0, 7, 9, 5, 20, null, 1, 0]);
    expect(states(members, [measured], 2)).toEqual([
      [0, 15, "in_sync"], [15, 30, "disconnected"], [30, 40, "catching_up"], [40, 50, "down"], [50, 60, "out"],
      [60, 75, "catching_up"], [75, 80, "in_sync"],
    ]);
  });

  test("a span outside of the series is out without a reason", () => {
    const members = [member(1, [-50, 200, "master"]), member(2, [-50, 200, "out"])];
    const measured = lag(2, Array(8).fill(0), Array(8).fill(1), Array(8).fill(1));
    expect(states(members, [measured], 2)).toEqual([[-50, 0, "out"], [0, 80, "down"], [80, 200, "out"]]);
    expect(states(members, [], 2)).toEqual([[-50, 200, "out"]]);
  });

  test("removed is not unknown: no replica is known from 40 to 50, and replica 2 left at 20 and came back at 60", () => {
    const members = [
      member(1, [0, 40, "master"], [50, 80, "master"]),
      member(2, [0, 20, "in_sync"], [60, 70, "in_sync"]),
      member(3, [30, 40, "in_sync"], [50, 80, "in_sync"]),
    ];
    expect(states(members, [], 2)).toEqual([
      [0, 20, "in_sync"], [20, 40, "removed"], [50, 60, "removed"], [60, 70, "in_sync"], [70, 80, "removed"],
    ]);
    expect(states(members, [], 3)).toEqual([[30, 40, "in_sync"], [50, 80, "in_sync"]]);
  });

  test.each([
    [1, 0, true], [1, 50, false], [2, 50, true], [2, 0, false], [3, 0, false], [3, 60, true], [9, 0, true],
  ])("replica %d at %d has no lag of its own: %s", (id, at, wanted) => {
    const members = [
      member(1, [0, 40, "master"], [40, 80, "out"]),
      member(2, [0, 40, "in_sync"], [40, 80, "master"]),
      member(3, [0, 40, "in_sync"]),
    ];
    expect(isNotReplica(memberStates(members, [], RANGE), id, at, at + 10)).toBe(wanted);
  });

  test("without the controllers' events no lag is hidden", () => expect(isNotReplica([], 1, 0, 10)).toBe(false));
});
