/** What the data says, in words. Pure. */

import { link, linkWith } from "../router";

export function topicLink(name: string): string {
  return link("/topics", name);
}

export function groupOfConsumersLink(name: string): string {
  return link("/consumers", name);
}

export function messageLink(row: { topic: string; brokerName: string; queueId: number; queueOffset: number }): string {
  return link("/messages", row.topic, row.brokerName, row.queueId, row.queueOffset);
}

export function searchLink(topic: string, query: Readonly<Record<string, string | undefined>> = {}): string {
  return linkWith("/messages", { topic, ...query });
}

/** 6 is "read, write". */
export function permText(perm: number | null): string {
  if (perm === null) return "–";
  const words = [perm & 4 ? "read" : "", perm & 2 ? "write" : ""].filter(Boolean);
  return words.join(", ") || "none";
}

const CONSUME_TYPES: Readonly<Record<string, string>> = { CONSUME_ACTIVELY: "pull", CONSUME_PASSIVELY: "push", CONSUME_POP: "pop" };

/** RocketMQ's ConsumeType, as mqadmin names it. */
export function consumeTypeText(type: string): string {
  return type ? (CONSUME_TYPES[type] ?? type.toLowerCase()) : "–";
}

/** CONSUME_FROM_FIRST_OFFSET is "first offset". */
export function startText(where: string): string {
  return where.replace(/^CONSUME_FROM_/, "").replaceAll("_", " ").toLowerCase() || "–";
}

/** For a field of type datetime-local, in this browser's time zone. */
export function localTime(ms: number): string {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return at.toISOString().slice(0, 19);
}

/** Null: it is no time. */
export function timeOf(local: string): number | null {
  const ms = local ? new Date(local).getTime() : Number.NaN;
  return Number.isNaN(ms) ? null : ms;
}

/** JSON with an indentation; the text itself if it is none. */
export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** RocketMQ's number of a client's version: 479 is V5_3_3. */
export function versionText(version: number | null): string {
  if (version === null) return "–";
  const first = 213; // V4_0_0_SNAPSHOT is 212
  if (version < first - 1) return String(version);
  const number = Math.floor((version - first + 1) / 2) + 400;
  return `${Math.floor(number / 100)}.${Math.floor((number % 100) / 10)}.${number % 10}`;
}
