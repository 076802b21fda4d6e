/* The last hour of the fleet by minute, from the stream: whose lag is high, who is below the minimum, who has no
 * master, of whom that is not known; how old it is, and a warning when the stream does not go on. */

import { plural } from "../lib/format";
import { levelOf } from "./incidents";
import { groupKey, hashOf, page } from "./model";
import { tableSection, timeColumn } from "./sections";
import { ago, clock, column, duration, el, highest, numberColumn } from "./tables";

const LIVE_ROWS = 16;
const LIVE_STALE_BATCHES = 6;
const LIVE_STALE_MS = 60_000;

/** A number, or null: unknown. A column that is left out is 0 in every minute. */
const liveAt = (columns, i) => (columns && columns.length ? columns[i] ?? null : 0);

/** The sum of what is known, or null: nothing is. */
const sumOf = (columns) => (!columns || !columns.length ? 0
  : columns.every((each) => each === null) ? null : columns.reduce((all, each) => all + (each || 0), 0));

/** How long controllers' events do not tell how the group was in a minute; null: whether it was there, either. */
const liveUnknown = (group, i) => (liveAt(group.no_master_ms, i) === null && !liveAt(group.unknown_ms, i)
  ? null : liveAt(group.unknown_ms, i) || 0);

/** The same of the hour; a minute in which only its samples show that it was there counts as a whole one. */
const liveUnknownSum = (group) => group.ms_p99.reduce((all, p99, i) =>
  all + (liveUnknown(group, i) ?? (p99 === null ? 0 : page.index.live.step_ms)), 0);

/** 0 to 5, or null: no sample of a master, and the controllers know of nothing. */
function liveLevel(group, i) {
  if (liveAt(group.no_master_ms, i) || liveAt(group.below_min_ms, i)) return 5;
  return levelOf("ms_p99", group.ms_p99[i], page.index.live.step_ms);
}

/** Without a master first, then below the minimum, then by lag, then unknown. */
function liveWorst() {
  const key = (group) => [
    sumOf(group.no_master_ms) || 0, sumOf(group.below_min_ms) || 0, highest(group.ms_p99.map((ms) => ms || 0)), liveUnknownSum(group),
  ];
  const keyed = page.index.live.groups.map((group) => [key(group), group]);
  const compare = ([a], [b]) => a.reduce((sign, each, i) => sign || b[i] - each, 0);
  return keyed.sort(compare).map(([, group]) => group);
}

function liveAge() {
  const { data_to_ts } = page.index.live;
  return `live: data to ${clock(data_to_ts)} UTC, ${ago(data_to_ts)}`;
}

function liveStaleness() {
  const { live } = page.index;
  if (!live || page.embedded) return "";
  const limit = Math.max(LIVE_STALE_MS, LIVE_STALE_BATCHES * live.every_ms);
  if (Date.now() - live.data_to_ts <= limit) return "";
  return `Live data is stale: it ends ${ago(live.data_to_ts)}. Is keelmq analytics stream still running, and do brokers write telemetry?`;
}

function liveCell(group, i) {
  const { live } = page.index;
  const unknown = liveUnknown(group, i);
  const words = [
    liveAt(group.no_master_ms, i) && `without a master for ${duration(group.no_master_ms[i])}`,
    liveAt(group.below_min_ms, i) && `below minimum for ${duration(group.below_min_ms[i])}`,
    unknown === null ? "not known by the controllers' events" : unknown && `state unknown for ${duration(unknown)}`,
    liveAt(group.no_master_ms, i) !== null && liveAt(group.below_min_ms, i) === null && "minimum unknown",
    group.ms_p99[i] === null ? "no sample of a master" : `p99 lag ${duration(group.ms_p99[i])}`,
  ].filter(Boolean);
  const level = liveLevel(group, i);
  const isUnknown = unknown !== 0 || liveAt(group.below_min_ms, i) === null;
  const bad = liveAt(group.no_master_ms, i) ? "M" : liveAt(group.below_min_ms, i) ? "B" : "";
  const mark = bad || (isUnknown && level !== null ? "?" : "");
  const title = `${clock(live.start_ts + i * live.step_ms).slice(0, 5)}: ${words.join(", ")}`;
  return el("td", { class: `heat ${level === null ? "hu" : `h${level}${isUnknown ? " part" : ""}`}`, title }, mark);
}

function liveRows(groups) {
  const { start_ts, step_ms, count } = page.index.live;
  const minutes = Array.from({ length: count }, (_, i) => i);
  const head = minutes.filter((i) => i % 10 === 0).map((i) =>
    el("th", { scope: "colgroup", colspan: String(Math.min(10, count - i)) }, clock(start_ts + i * step_ms).slice(0, 5)));
  const from = String(start_ts);
  const row = (group) => el("tr", {}, el("th", { scope: "row" },
    el("a", { href: hashOf(group, { from, to: String(start_ts + count * step_ms) }) }, groupKey(group))),
    minutes.map((i) => liveCell(group, i)));
  return el("table", { class: "heatmap live" }, el("caption", {}, "The last hour of the worst groups, by minute"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Group"), head)), el("tbody", {}, groups.map(row)));
}

function liveWords(groups) {
  const { count } = page.index.live;
  const last = count - 1;
  const now = (name) => groups.filter((group) => liveAt(group[name], last)).length;
  const lag = highest(groups.map((group) => group.ms_p99[last] || 0));
  const unseen = groups.filter((group) => group.ms_p99[last] === null && (group.ms_p99[last - 1] ?? null) === null).length;
  const isUnknown = (group) => liveUnknown(group, last) !== 0 || liveAt(group.below_min_ms, last) === null;
  const words = [
    [now("no_master_ms"), "without a master"], [now("below_min_ms"), "below minimum"], [unseen, "without a sample of a master"],
    [groups.filter(isUnknown).length, "in a state that is not known"],
  ].filter(([n]) => n).map(([n, text]) => `${plural(n, "group")} ${text}`);
  return `This minute: ${words.length ? `${words.join(", ")}; ` : "every group has a master and enough replicas; "}worst p99 lag ${duration(lag)}.`;
}

export function liveSection() {
  const { live } = page.index;
  if (!live || !live.groups.length) return "";
  const groups = liveWorst();
  const cut = groups.length > LIVE_ROWS ? ` The worst ${LIVE_ROWS} of ${plural(groups.length, "group")} stand here.` : "";
  return tableSection({
    name: "live", title: "The last hour, live", rows: groups,
    lead: `${liveWords(groups)}${cut} Colour: p99 lag; B: below minInSyncReplicas; M: without a master; ?: not known whether; hatched: no sample.`,
    columns: [
      column("group", "Group", groupKey),
      numberColumn("worst_p99_ms", "Worst p99 lag", (group) => highest(group.ms_p99.map((ms) => ms || 0)), duration),
      numberColumn("worst_ms", "Highest lag", (group) => highest(group.ms_max.map((ms) => ms || 0)), duration),
      numberColumn("below_min_ms", "Below minimum", (group) => sumOf(group.below_min_ms), duration),
      numberColumn("no_master_ms", "Without a master", (group) => sumOf(group.no_master_ms), duration),
      numberColumn("unknown_ms", "State unknown", liveUnknownSum, duration),
      timeColumn("samples_ts", "Samples to", (group) => group.samples_ts ?? null),
    ],
    content: [
      el("p", { class: "stale", role: "status", hidden: liveStaleness() ? null : "" }, liveStaleness()),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The last hour by minute" },
        liveRows(groups.slice(0, LIVE_ROWS))),
    ],
  });
}

/** What changes without new data. */
export function liveTick() {
  if (!page.index || !page.index.live) return;
  document.querySelectorAll(".card.live .age").forEach((node) => { node.textContent = liveAge(); });
  document.querySelectorAll(".card.live .stale").forEach((node) => {
    node.textContent = liveStaleness();
    node.hidden = !node.textContent;
  });
}
