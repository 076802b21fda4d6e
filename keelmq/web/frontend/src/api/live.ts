/** The cluster's picture, kept current by server-sent events. */

import { Store } from "../lib/store";
import { apiAddress, clockAheadMs } from "./client";
import { readSession } from "./session";
import type { ClusterStatus, StatusChange } from "./types";

export type Connection = "connecting" | "live" | "lost";

export interface Live {
  status: ClusterStatus | null;
  /** Of this browser's clock, when the picture was taken; clocks of servers are not compared with it. */
  takenAt: number;
  connection: Connection;
  /** Since when there has been no connection. */
  lostAt: number;
  reason: string;
}

const QUIET_MAX_MS = 30_000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 5_000;

export const live = new Store<Live>({ status: null, takenAt: 0, connection: "connecting", lostAt: 0, reason: "" });

export function groupKey(group: { cluster: string; brokerName: string }): string {
  return `${group.cluster}/${group.brokerName}`;
}

/** The picture after a change: as applied() in keelmq/console/core/changes.py. Groups in the order of their names. */
export function applied(before: ClusterStatus, change: StatusChange): ClusterStatus {
  const groups = new Map(before.groups.map((group) => [groupKey(group), group]));
  for (const gone of change.removedGroups) groups.delete(groupKey(gone));
  const isSorted = change.groups.every((group) => groups.has(groupKey(group)));
  for (const group of change.groups) groups.set(groupKey(group), group);
  const all = [...groups.values()];
  return {
    takenMs: change.takenMs,
    tookMs: change.tookMs,
    verdict: change.verdict,
    nameServers: change.nameServers ?? before.nameServers,
    controllers: change.controllers ?? before.controllers,
    groups: isSorted ? all : all.sort((one, other) => compared(one.cluster, other.cluster) || compared(one.brokerName, other.brokerName)),
    problems: change.problems ?? before.problems,
    brokersNotAsked: change.brokersNotAsked,
  };
}

function compared(one: string, other: string): number {
  return one < other ? -1 : Number(one > other);
}

/** A time of the server, by this browser's clock. The header Date has whole seconds. */
function takenAt(serverMs: number): number {
  return clockAheadMs === null ? Date.now() : Math.min(serverMs + clockAheadMs, Date.now());
}

/** Keeps one EventSource open while the page is visible; the server asks brokers less often when nobody looks. */
export class LiveStatus {
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private retryMs = RETRY_FIRST_MS;

  constructor(private readonly open: (address: string) => EventSource = (address) => new EventSource(address)) {}

  start(): void {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.connect()));
    addEventListener("online", () => this.connect());
    this.connect();
  }

  stop(): void {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    this.source?.close();
    this.source = null;
  }

  connect(): void {
    this.stop();
    const source = this.open(apiAddress("events"));
    this.source = source;
    source.addEventListener("status", (event) => this.full(JSON.parse(event.data as string) as ClusterStatus));
    source.addEventListener("change", (event) => this.changed(JSON.parse(event.data as string) as StatusChange));
    source.addEventListener("ping", () => this.heard());
    source.addEventListener("end", () => void this.ended());
    source.onerror = () => this.lost("the server does not answer");
    this.expect();
  }

  private full(status: ClusterStatus): void {
    this.heard();
    live.update((was) => ({ ...was, status, takenAt: takenAt(status.takenMs) }));
  }

  private changed(changes: StatusChange): void {
    this.heard();
    const { status } = live.get();
    if (status === null) return this.connect(); // cannot be: the full picture is the first event
    live.update((was) => ({ ...was, status: applied(status, changes), takenAt: takenAt(changes.takenMs) }));
  }

  /** The server stops, or the session is over. */
  private async ended(): Promise<void> {
    this.lost("the server ended the connection");
    await readSession().catch(() => undefined); // it is tried again anyway
  }

  private heard(): void {
    this.retryMs = RETRY_FIRST_MS;
    this.expect();
    live.update((was) => ({ ...was, connection: "live", lostAt: 0, reason: "" }));
  }

  private expect(): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.lost(`no news for ${QUIET_MAX_MS / 1000} s`), QUIET_MAX_MS);
  }

  private lost(reason: string): void {
    this.stop();
    live.update((was) => ({ ...was, connection: "lost", lostAt: was.lostAt || Date.now(), reason }));
    this.timer = setTimeout(() => this.connect(), this.retryMs);
    this.retryMs = Math.min(this.retryMs * 2, RETRY_MAX_MS);
  }
}
