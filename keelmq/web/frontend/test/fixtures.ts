/** Pictures of clusters for tests. Invented. */

import type { ClusterStatus, ControllerStatus, GroupStatus, ReplicaStatus } from "../src/api/types";

export function replica(changes: Partial<ReplicaStatus> = {}): ReplicaStatus {
  return {
    brokerId: 1, address: "10.0.0.1:10911", role: "master", isAlive: true, isInSync: true, problem: "", maxOffset: 4_096_000,
    confirmOffset: 4_096_000, lagBytes: 0, lagMs: 0, epoch: 3, messagesInPerS: 1200, messagesOutPerS: 1200, diskUsed: 0.41,
    grpcPort: null, grpcClients: null, version: "V5_3_3", startedMs: 1_795_250_000_000, ...changes,
  };
}

export function group(changes: Partial<GroupStatus> = {}): GroupStatus {
  return {
    cluster: "KeelCluster", brokerName: "broker-a", verdict: "ok", hasControllers: true, masterId: 1, masterAddress: "10.0.0.1:10911",
    masterEpoch: 3, syncStateSet: [1, 2], syncStateSetEpoch: 5, minInSync: 2, confirmOffset: 4_096_000, maxOffset: 4_096_000,
    replicas: [replica(), replica({ brokerId: 2, address: "10.0.0.2:10911", role: "slave" })],
    lastElection: {
      eventId: 7, timeMs: 1_795_257_640_636, reason: "the master's heartbeats ended", brokerId: 1, before: 2, masterEpoch: 3,
      withoutMasterMs: 78,
    },
    disagreements: [], problems: [], ...changes,
  };
}

export function controller(changes: Partial<ControllerStatus> = {}): ControllerStatus {
  return { address: "10.0.0.1:9878", member: "n0", role: "leader", problem: "", term: 4, commitIndex: 900, lastApplied: 900, ...changes };
}

export function cluster(changes: Partial<ClusterStatus> = {}): ClusterStatus {
  return {
    takenMs: 1_795_257_700_000, tookMs: 12, verdict: "ok",
    nameServers: [{ address: "10.0.0.1:9876", isUp: true, problem: "", brokers: 2, groups: 1, topics: 9 }],
    controllers: [controller(), controller({ address: "10.0.0.2:9878", member: "n1", role: "follower" })],
    groups: [group()], problems: [], brokersNotAsked: 0, ...changes,
  };
}
