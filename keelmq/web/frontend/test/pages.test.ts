import { describe, expect, test } from "vitest";
import type { ReplicaDetail } from "../src/api/types";
import { withoutMaster } from "../src/components/election_table";
import { groupOf, headline, worstLag } from "../src/lib/cluster";
import { consumeTypeText, startText } from "../src/lib/data";
import { epochRows } from "../src/lib/epochs";
import { changesOf, perSecond } from "../src/lib/history";
import { timeline } from "../src/lib/timeline";
import { firstChoice } from "../src/pages/group_actions";
import { cluster, group, replica } from "./fixtures";

function withEpochs(brokerId: number, epochs: [number, number, number][] | null): ReplicaDetail {
  const entries = epochs?.map(([epoch, startOffset, endOffset]) => ({ epoch, startOffset, endOffset })) ?? null;
  return { brokerId, address: `10.0.0.${brokerId}:10911`, epochs: entries, maxOffset: null, ha: null, problem: "" };
}

describe("epochs side by side", () => {
  test("the end of an epoch that is still written is no difference", () => {
    const rows = epochRows([withEpochs(1, [[1, 0, 100], [2, 100, 300]]), withEpochs(2, [[1, 0, 100], [2, 100, 250]])], 1);
    expect(rows.map((row) => [row.epoch, row.differs])).toEqual([[2, [false, false]], [1, [false, false]]]);
  });

  test("another start, another end and an epoch of its own are differences", () => {
    const rows = epochRows(
      [withEpochs(1, [[1, 0, 100], [2, 100, 200], [4, 200, 400]]), withEpochs(2, [[1, 0, 100], [2, 100, 230], [3, 230, 260]]), withEpochs(3, null)],
      1,
    );
    expect(rows.map((row) => [row.epoch, row.differs])).toEqual([
      [4, [false, true, false]],
      [3, [false, true, false]],
      [2, [false, true, false]],
      [1, [false, false, false]],
    ]);
    expect(rows[0]?.entries[2]).toBeUndefined();
  });

  test("a replica that deleted old files lacks the first epochs rightly", () => {
    const rows = epochRows([withEpochs(1, [[1, 0, 100], [2, 100, 200]]), withEpochs(2, [[2, 100, 200]])], 1);
    expect(rows[1]?.differs).toEqual([false, false]);
  });
});

describe("history", () => {
  test("a change is one against the last known value", () => {
    expect(changesOf([1, 2, 3, 4, 5], [7, null, 7, 8, 8])).toEqual([4]);
    expect(changesOf([], [])).toEqual([]);
  });

  test("growth is unknown beside unknown values, after a truncation and in the step that is not over", () => {
    const times = [0, 2000, 4000, 6000, 8000, 10_000];
    expect(perSecond(times, [0, 200, null, 300, 100, 500])).toEqual([null, 100, null, null, null, null]);
  });
});

describe("the headline", () => {
  test("what is lost comes first", () => {
    const status = cluster({
      verdict: "failed",
      groups: [group({ masterId: null }), group({ syncStateSet: [1], minInSync: 2 }), group()],
      nameServers: [{ address: "a", isUp: false, problem: "no connection", brokers: null, groups: null, topics: null }],
    });
    expect(headline(status)).toBe("1 group of 3 without a master; 1 group below minInSyncReplicas, which refuses messages; 1 of 1 name server silent.");
  });

  test("nothing is wrong", () => expect(headline(cluster())).toBe("The group has a master, and enough replicas in sync."));
  test("no broker yet", () => expect(headline(cluster({ groups: [] }))).toBe("No broker is registered yet."));
});

test("the largest lag is of a living slave, and unknown if nobody tells", () => {
  const dead = replica({ brokerId: 3, isAlive: false, lagBytes: 9_000 });
  const slow = replica({ brokerId: 2, lagBytes: 70 });
  expect(worstLag(group({ replicas: [replica(), slow, dead] }), "lagBytes")).toBe(70);
  expect(worstLag(group({ replicas: [replica(), replica({ brokerId: 2, lagBytes: null })] }), "lagBytes")).toBeNull();
});

test("a problem leads to its group, also by the address of a replica", () => {
  const problem = { level: "failed" as const, check: "broker.reachable", subject: "10.0.0.2:10911", text: "", nextStep: "", command: "" };
  expect(groupOf(problem, [group()])?.brokerName).toBe("broker-a");
  expect(groupOf({ ...problem, subject: "10.0.0.9:9876" }, [group()])).toBeUndefined();
});

test("the first choice of an election is a living replica in sync", () => {
  const dead = replica({ brokerId: 2, isAlive: false });
  const behind = replica({ brokerId: 3, isInSync: false });
  expect(firstChoice(group({ replicas: [replica(), dead, behind, replica({ brokerId: 4 })] }))).toBe(4);
});

test("the time without a master is not known where nobody was lost", () => {
  const election = {
    eventId: 1, ts: 1_000, clusterName: "c", brokerName: "b", oldMasterBrokerId: 1, newMasterBrokerId: 2, masterEpoch: 2,
    syncStateSetEpoch: 3, reason: "", unclean: false, lastHeartbeatTs: 900, detectedTs: 990,
  };
  expect(withoutMaster(election)).toBe(100);
  expect(withoutMaster({ ...election, lastHeartbeatTs: null })).toBeNull();
  expect(withoutMaster({ ...election, newMasterBrokerId: null })).toBeNull();
});

test("the timeline has elections and what the console saw, the newest first", () => {
  const election = {
    eventId: 1, ts: 2_500, clusterName: "c", brokerName: "b", oldMasterBrokerId: 1, newMasterBrokerId: 2, masterEpoch: 2,
    syncStateSetEpoch: 3, reason: "master 1 is not active", unclean: false, lastHeartbeatTs: 2_400, detectedTs: null,
  };
  const history = { cluster: "c", brokerName: "b", stepMs: 1, timesMs: [1_000, 2_000, 3_000], values: { inSync: [3, 2, 3], replicasAlive: [3, null, 3] } };
  expect(timeline([election], history).map((event) => `${event.timeMs} ${event.kind} ${event.text}`)).toEqual([
    "3000 SyncStateSet grew from 2 to 3 in sync",
    "2500 election broker 2 instead of 1: master 1 is not active, 100 ms after the last heartbeat",
    "2000 SyncStateSet shrank from 3 to 2 in sync",
  ]);
  expect(timeline([], null)).toEqual([]);
});

test("RocketMQ's words of a consumer group are shown as people say them", () => {
  expect([startText("CONSUME_FROM_FIRST_OFFSET"), startText("")]).toEqual(["first offset", "–"]);
  expect(["CONSUME_PASSIVELY", "CONSUME_ACTIVELY", ""].map(consumeTypeText)).toEqual(["push", "pull", "–"]);
});
