/** The JSON of the server: keelmq/health/status.py and keelmq/console. Null: not known, never zero instead.
 *
 * Offsets and differences of offsets are bytes of the CommitLog; names ending in Ms are wall-clock
 * milliseconds or durations.
 */

export type Verdict = "ok" | "warning" | "failed";

export interface Problem {
  level: Verdict;
  check: string;
  subject: string;
  text: string;
  nextStep: string;
  /** A line to paste into a terminal, or empty. */
  command: string;
}

export interface NameServerStatus {
  address: string;
  isUp: boolean;
  problem: string;
  brokers: number | null;
  groups: number | null;
  topics: number | null;
}

export interface ControllerStatus {
  address: string;
  member: string;
  role: string;
  problem: string;
  term: number | null;
  commitIndex: number | null;
  lastApplied: number | null;
}

export interface ReplicaStatus {
  brokerId: number;
  address: string;
  role: string;
  isAlive: boolean;
  isInSync: boolean;
  problem: string;
  maxOffset: number | null;
  confirmOffset: number | null;
  lagBytes: number | null;
  lagMs: number | null;
  epoch: number | null;
  messagesInPerS: number | null;
  messagesOutPerS: number | null;
  /** Share of the disk of the store, 0 to 1. */
  diskUsed: number | null;
  /** With enableProxy. */
  grpcPort: number | null;
  grpcClients: number | null;
  version: string;
  startedMs: number | null;
}

export interface LastElection {
  eventId: number;
  timeMs: number;
  reason: string;
  /** -1: nobody could be elected. */
  brokerId: number;
  before: number | null;
  masterEpoch: number;
  withoutMasterMs: number | null;
}

export interface GroupStatus {
  cluster: string;
  brokerName: string;
  verdict: Verdict;
  hasControllers: boolean;
  masterId: number | null;
  masterAddress: string;
  masterEpoch: number | null;
  syncStateSet: number[];
  syncStateSetEpoch: number | null;
  minInSync: number | null;
  confirmOffset: number | null;
  maxOffset: number | null;
  replicas: ReplicaStatus[];
  lastElection: LastElection | null;
  disagreements: string[];
  problems: Problem[];
}

export interface ClusterStatus {
  takenMs: number;
  tookMs: number;
  verdict: Verdict;
  nameServers: NameServerStatus[];
  controllers: ControllerStatus[];
  groups: GroupStatus[];
  problems: Problem[];
  brokersNotAsked: number;
}

/** What is different in a picture from the one before; null: as before. */
export interface StatusChange {
  takenMs: number;
  tookMs: number;
  verdict: Verdict;
  groups: GroupStatus[];
  removedGroups: { cluster: string; brokerName: string }[];
  nameServers: NameServerStatus[] | null;
  controllers: ControllerStatus[] | null;
  problems: Problem[] | null;
  brokersNotAsked: number;
}

/** values[name][i] was seen at timesMs[i], the start of a step of stepMs; null: unknown then. */
export interface HistoryView {
  cluster: string;
  brokerName: string;
  stepMs: number;
  timesMs: number[];
  values: Record<string, (number | null)[]>;
}

// -- keelmq/console/details_api.py: what is asked when somebody opens a page -------------------------------

export interface PastElection {
  eventId: number;
  ts: number;
  clusterName: string;
  brokerName: string;
  oldMasterBrokerId: number | null;
  /** Null: the group has had no master since. */
  newMasterBrokerId: number | null;
  masterEpoch: number;
  syncStateSetEpoch: number;
  reason: string;
  unclean: boolean;
  lastHeartbeatTs: number | null;
  detectedTs: number | null;
}

export interface EpochEntry {
  epoch: number;
  startOffset: number;
  /** Exclusive. */
  endOffset: number;
}

export interface HaConnection {
  addr: string;
  slaveAckOffset: number;
  diff: number;
  inSync: boolean;
  transferredByteInSecond: number;
  transferFromWhere: number;
  brokerId: number | null;
  etaMillis: number | null;
  lagMillis: number | null;
}

export interface HaRuntimeInfo {
  master: boolean;
  masterCommitLogMaxOffset: number;
  inSyncSlaveNums: number;
  haConnectionInfo: HaConnection[];
  haClientRuntimeInfo: {
    masterAddr: string | null;
    transferredByteInSecond: number;
    maxOffset: number;
    lastReadTimestamp: number;
    lastWriteTimestamp: number;
    masterFlushOffset: number;
    activated: boolean;
    etaMillis: number | null;
  };
  fault: string | null;
}

export interface ReplicaDetail {
  brokerId: number;
  address: string;
  epochs: EpochEntry[] | null;
  maxOffset: number | null;
  ha: HaRuntimeInfo | null;
  problem: string;
}

export interface SettingDifference {
  key: string;
  /** Address -> value; null: it has no such key. */
  values: Record<string, string | null>;
  /** A difference is right. */
  isOwn: boolean;
}

export interface ElectionCandidate {
  brokerId: number;
  brokerAddress: string;
  inSync: boolean;
  alive: boolean;
  wins: boolean;
  why: string;
  epoch: number | null;
  maxOffset: number | null;
  behindBytes: number | null;
}

export interface ElectionExplanation {
  code: number;
  remark: string;
  verdict: string;
  isChange: boolean;
  newMasterBrokerId: number | null;
  unclean: boolean;
  candidates: ElectionCandidate[];
}

export interface GroupDetail {
  ageMs: number;
  group: GroupStatus;
  replicas: ReplicaDetail[];
  differences: SettingDifference[];
  /** Newest first; null: the controllers keep none. */
  elections: PastElection[] | null;
  nextElection: ElectionExplanation | null;
  problems: string[];
}

export interface SettingsView {
  server: string;
  kind: "nameServer" | "controller" | "broker";
  settings: Record<string, string>;
}

export interface InnerBroker {
  brokerClusterName: string;
  brokerName: string;
  brokerId: number;
  canonicalName: string;
  state: string;
  reason: string;
  role: string;
  masterEpoch: number;
  address: string;
  worker: number;
  storeBytes: number;
  quotaBytes: number;
  connections: number;
  isReady: boolean;
}

export interface ContainerDetail {
  address: string;
  status: {
    address: string;
    brokers: InnerBroker[];
    workers: { number: number; pid: number; isRunning: boolean; restarts: number; reason: string; cpuMillis: number; residentBytes: number }[];
  } | null;
  problem: string;
}
