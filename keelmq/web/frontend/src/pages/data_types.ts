/** The answers about topics, groups, messages and users, as keelmq/console/data/*.py makes them. */

export interface ServerProblem {
  server: string;
  /** Null: it was not reached. */
  code: number | null;
  problem: string;
}

interface Answer {
  takenMs: number;
  problems: ServerProblem[];
}

interface PageOf extends Answer {
  total: number;
  found: number;
  notAsked: number;
}

export interface TopicRow {
  name: string;
  kind: string;
  clusters: string[];
  brokers: number;
  readQueues: number | null;
  writeQueues: number | null;
  /** Null: brokers differ, or none answered. */
  perm: number | null;
  order: boolean;
}

export interface TopicsView extends PageOf {
  counts: Record<string, number>;
  topics: TopicRow[];
}

export interface TopicAtBroker {
  cluster: string;
  brokerName: string;
  address: string;
  isMaster: boolean;
  readQueues: number;
  writeQueues: number;
  perm: number;
  order: boolean | null;
  attributes: Record<string, string>;
  putTps: number | null;
  messages: number | null;
}

export interface QueueRow {
  brokerName: string;
  queueId: number;
  minOffset: number;
  maxOffset: number;
  lastUpdateMs: number | null;
}

export interface TopicView extends Answer {
  name: string;
  kind: string;
  brokers: TopicAtBroker[];
  queues: QueueRow[];
  consumers: string[];
  putTps: number;
  messages: number;
  cut: number;
}

export interface GroupRow {
  name: string;
  kind: string;
  brokers: number;
  members: number | null;
  consumeType: string;
  messageModel: string;
  lag: number | null;
  tps: number | null;
  topics: number | null;
  /** Brokers of the group that did not tell its lag. */
  unknownAt: number;
}

export interface GroupsView extends PageOf {
  groups: GroupRow[];
}

export interface QueueLag {
  topic: string;
  brokerName: string;
  queueId: number;
  brokerOffset: number;
  consumerOffset: number;
  lag: number;
  inFlight: number;
  lastMs: number | null;
  clientId: string;
}

export interface MemberRow {
  clientId: string;
  address: string;
  language: string;
  version: number;
}

export interface GroupView extends Answer {
  name: string;
  kind: string;
  lag: number;
  tps: number;
  consumeType: string;
  messageModel: string;
  consumeFromWhere: string;
  members: MemberRow[];
  subscriptions: { topic: string; expression: string; type: string }[];
  queues: QueueLag[];
  brokers: { cluster: string; brokerName: string; address: string; isMaster: boolean; settings: Record<string, unknown> }[];
  differ: boolean;
  cut: number;
}

export interface ProducerRow {
  group: string;
  clientId: string;
  address: string;
  language: string;
  version: number | null;
  brokers: string[];
}

export interface ProducersView extends PageOf {
  producers: ProducerRow[];
}

export interface MessageRow {
  topic: string;
  brokerName: string;
  queueId: number;
  queueOffset: number;
  msgId: string;
  offsetMsgId: string;
  tags: string;
  keys: string;
  priority?: number;
  storeMs: number;
  bornMs: number;
  bornHost: string;
  bodyBytes: number;
  preview: string;
  reconsumeTimes: number;
  originalTopic: string;
}

export interface SearchView extends Answer {
  messages: MessageRow[];
  cut: string;
  next: string | null;
  notAsked: number;
}

export interface MessageView extends Answer {
  message: MessageRow;
  storeHost: string;
  commitLogOffset: number;
  storedBytes: number;
  sysFlag: number;
  flag: number;
  properties: Record<string, string>;
  body: { bytes: number; shownBytes: number; kind: "text" | "json" | "hex" | "packed"; text: string };
  tracks: { group: string; state: string; isOnline: boolean | null; remark: string }[];
  moreGroups: number;
}

export interface TraceView extends Answer {
  msgId: string;
  topic: string;
  sentMs: number | null;
  steps: { kind: string; timeMs: number | null; costMs: number | null; group: string; client: string; status: string; topic: string; details: Record<string, string> }[];
  cut: string;
}

export interface PolicyEntry {
  resource: string | null;
  actions: string[] | null;
  sourceIps: string[] | null;
  decision: string | null;
}

export interface AccessView extends Answer {
  clusters: string[];
  users: { username: string; userType: string; userStatus: string; brokers: string[]; isMissingAt: string[]; differs: boolean }[];
  acls: { subject: string; policies: { policyType: string | null; entries: PolicyEntry[] | null }[]; brokers: string[]; isMissingAt: string[]; differs: boolean }[];
  cut: number;
  notAsked: number;
}

export interface AuditView {
  where: string | null;
  command: string;
  entries: Record<string, unknown>[];
  next: string | null;
  cut: string;
  problem: string;
  unreadableLines: number;
  note: string;
}
