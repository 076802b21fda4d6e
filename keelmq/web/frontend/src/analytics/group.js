/* One group: lag, replicas, membership, fail-overs, what changed, its incidents and its clocks. */

import { UNKNOWN, count, plural } from "../lib/format";
import * as Charts from "./charts";
import { incidentTable, kindName } from "./incidents";
import { fleetHash, goTo, hashWith, page, state, time, wholeNumber } from "./model";
import { DEMO, RUN, bar, chartSection, footer, recordTable, tableSection, tile, timeColumn, verdictBox } from "./sections";
import { STATES, isNotReplica, replica } from "./states";
import { bytes, clock, column, day, duration, el, highest, list, microseconds, numberColumn, round } from "./tables";

const REASONS = { caught_up: "caught up", lag: "fell behind", gone: "not active" };
const gapsOf = (group) => group.failovers.map((each) => each.gap_ms).filter((ms) => ms !== null);
const SAID = new Set(["failover", "unclean", "below-min", "gap"]); // the verdict has words for these

/* ---- the verdict, in words, and the totals ---- */

function groupRemarks({ totals, failovers, members, incidents }) {
  const gaps = gapsOf({ failovers });
  const gap = gaps.length ? `, the longest gap that a producer saw: ${duration(highest(gaps))}` : "";
  const remarks = [["ok", failovers.length ? plural(failovers.length, "fail-over") + gap : "No fail-over"]];
  for (const { kind, replica: ofReplica, from, to, state_ms: held } of incidents.filter((each) => !SAID.has(each.kind)).slice(0, 3)) {
    const who = ofReplica === null || ofReplica === undefined ? "" : ` of ${replica(ofReplica)}`;
    remarks.push(["warning", `${kindName(kind)}${who} from ${time(from)} for ${duration(held ?? to - from)}`]);
  }
  if (totals.unclean_elections) {
    const unclean = plural(totals.unclean_elections, "unclean election");
    remarks.push(["failed", `${unclean}: acknowledged messages may be lost`]);
  }
  if (!members.length) remarks.push(["warning", "no controller_event records: nobody knows who was in the SyncStateSet"]);
  else if (totals.below_min_ms === null) remarks.push(["warning", "not known whether the SyncStateSet was below minInSyncReplicas"]);
  else if (!totals.below_min_ms) remarks.push(["ok", "SyncStateSet never below minInSyncReplicas"]);
  else {
    const isLong = incidents.some(({ kind }) => kind === "below-min");
    remarks.push([isLong ? "warning" : "ok", `SyncStateSet below minInSyncReplicas for ${duration(totals.below_min_ms)}`]);
  }
  const out = members.filter(({ spans }) => spans.length && spans.at(-1).state === "out");
  if (out.length) remarks.push(["warning", `at the end out of sync: replica ${list(out.map((each) => each.broker_id))}`]);
  return remarks;
}

function recordRemarks({ quality, unknown }) {
  const sum = (name) => quality.reduce((all, row) => all + (row[name] || 0), 0);
  const remarks = [
    [sum("corrupt"), "damaged line", "skipped"],
    [sum("epoch_gaps"), "gap", "in the epochs: records are missing"],
    [sum("confirm_above_max"), "sample", "with confirmOffset above maxOffset"],
  ].filter(([n]) => n).map(([n, noun, rest]) => ["warning", `${plural(n, noun)} ${rest}`]);
  const missing = unknown.reduce((all, [from, to]) => all + to - from, 0);
  if (missing > 60_000) remarks.push(["warning", `no data for ${duration(missing)}`]);
  return remarks;
}

function verdict(group) {
  const remarks = [...groupRemarks(group), ...recordRemarks(group)];
  const level = ["failed", "warning", "ok"].find((each) => remarks.some(([found]) => found === each));
  return verdictBox(level, `${remarks.map(([, text]) => text).join("; ")}.`);
}

/** The p99 of each window, in ms: of the broker's own histogram, else of its samples, once a second. The same rule is in
 * analytics/queries/incidents.py. */
const p99Of = (lag) => lag.ms_p99.map((ms, i) => inMs(lag.lag_us_p99[i]) ?? ms);

const maxOf = (lag) => lag.ms_max.map((ms, i) => {
  const known = [ms, inMs(lag.lag_us_max[i])].filter((each) => each !== null);
  return known.length ? Math.max(...known) : null;
});

const inMs = (us) => (us === null || us === undefined ? null : Math.ceil(us / 1_000));

function tiles(group, range) {
  const { totals, failovers, lag } = group;
  const gaps = gapsOf(group);
  return el("dl", { class: "tiles", "aria-label": "Totals" },
    failovers.length
      ? tile("Fail-overs", count(failovers.length), `last at ${time(failovers.at(-1).elected_ts)}`)
      : tile("Fail-overs", "0", "none in this range"),
    gaps.length
      ? tile("Longest producer gap", duration(highest(gaps)), `of ${plural(gaps.length, "measured gap")}`)
      : tile("Longest producer gap", UNKNOWN, "no producer measured it"),
    group.hasSamples
      ? tile("Worst p99 lag", duration(highest(p99Of(lag))), `of ${duration(range.window)}; highest ${duration(highest(maxOf(lag)))}`)
      : tile("Worst p99 lag", UNKNOWN, "no samples"),
    tile("Elections", count(totals.elections), `${count(totals.unclean_elections)} unclean`),
    tile("Shrinks / expands", `${count(totals.shrinks)} / ${count(totals.expands)}`, plural(totals.flaps, "flap")),
    tile("Below minimum", totals.below_min_ms === null ? "unknown" : duration(totals.below_min_ms),
      typeof totals.availability === "number" ? `available ${(100 * totals.availability).toFixed(3)} %` : "of minInSyncReplicas"));
}

/* ---- the charts ---- */

function membership(charts, group, range) {
  const { states: members, failovers } = group;
  return chartSection(charts, {
    name: "membership", title: "SyncStateSet membership", height: 116 + 34 * members.length,
    lead: "Who was master, in sync, or out: catching up, disconnected (it acknowledges nothing), down (no master saw it), removed. Numbered lines are fail-overs. Drag the bar below to zoom every chart.",
    rows: members.flatMap(({ broker_id, spans }) => spans.map((span) => ({ ...span, broker_id }))),
    columns: [
      column("broker_id", "Replica", (row) => row.broker_id, { text: replica }),
      column("state", "State", (row) => row.state, { text: (state) => STATES[state] || state }),
      timeColumn("from", "From", (row) => row.from),
      timeColumn("to", "To", (row) => row.to),
      numberColumn("ms", "For", (row) => row.to - row.from, duration),
    ],
    empty: ["No controller_event records in this range. Controllers write them (telemetryEnable=true); then run", RUN],
    option: () => Charts.memberOption(range, failovers, members, group.unknown),
  });
}

function lagSection(charts, { lag, failovers, hasSamples, unknown }, range, { unit, text, keys, ...words }) {
  const names = ["p50", "p95", "p99", "max"];
  return chartSection(charts, {
    ...words, rows: hasSamples ? lag.ts.map((_, i) => i) : [], most: text(highest(lag[keys[3]])),
    columns: [
      timeColumn("ts", "Window", (i) => lag.ts[i]),
      numberColumn("samples", "Samples", (i) => lag.samples[i]),
      ...keys.map((key, k) => numberColumn(key, names[k], (i) => lag[key][i], text)),
    ],
    empty: ["No ha_sample records of a master in this range. Brokers write them (telemetryEnable=true); then run", RUN],
    option: () => Charts.lagOption(range, failovers, {
      unit, text, unknown,
      lines: keys.map((key, k) => ({ name: names[k], shade: k, ts: lag.ts, values: lag[key], dashed: k === 3 })),
    }),
  });
}

function replicaSection(charts, { replicaLag, states, failovers, unknown }, range, { unit, text, key, ...words }) {
  const wanted = wholeNumber(state().replica);
  const shown = replicaLag.filter(({ broker_id }) => wanted === null || broker_id === wanted);
  const valueOf = (each, i) => (carries(each, i, states, range) ? each[key][i] : null);
  const rowsOf = (each) =>
    each.ts.map((at, i) => ({ at, broker_id: each.broker_id, most: valueOf(each, i), seen: each.samples[i] || 0 }));
  const rows = shown.flatMap(rowsOf).filter(({ most }) => most !== null);
  return chartSection(charts, {
    ...words, rows, most: text(highest(rows.map((row) => row.most))),
    lead: words.lead || "Behind its master, highest of the window. A hole: not connected, or itself the master.",
    columns: [
      timeColumn("ts", "Window", (row) => row.at),
      column("broker_id", "Replica", (row) => row.broker_id, { text: replica }),
      numberColumn(key, "Highest lag", (row) => row.most, text),
      numberColumn("samples", "Samples", (row) => row.seen),
    ],
    empty: ["No master saw a replica in this range. A master samples its replicas once a second; then run", RUN],
    option: () => Charts.lagOption(range, failovers, {
      unit, text, unknown, lines: shown.flatMap((each) => linesOf(each, key, (i) => valueOf(each, i))),
    }),
  });
}

/** Whether a number of window i is this replica's lag: measured, or carried on while it is down. */
function carries({ broker_id, ts, samples }, i, states, range) {
  return (samples[i] || 0) > 0 || !isNotReplica(states, broker_id, ts[i], ts[i] + range.window);
}

/** What was measured as a line, and how far behind a replica is that is down as a dashed one. */
function linesOf({ broker_id, ts, samples }, key, valueOf) {
  const values = ts.map((_, i) => valueOf(i));
  const seen = (i) => (samples[i] || 0) > 0;
  const measured = values.map((value, i) => (seen(i) ? value : null));
  const carried = values.map((value, i) => (seen(i) ? null : value));
  const down = values.some((value, i) => value !== null && !seen(i));
  return [
    { name: replica(broker_id), broker_id, ts, values: measured },
    ...(down ? [{ name: `${replica(broker_id)}, down`, broker_id, ts, values: carried, dashed: true }] : []),
  ];
}

function lagSections(charts, group, range) {
  const ms = { unit: 1, text: duration };
  const us = { unit: 100, text: microseconds };
  const has = (name) => group.lag[name].some((value) => value !== null);
  const fine = [
    has("lag_us_p99") && lagSection(charts, group, range, {
      ...us, name: "lag-us", title: "confirmOffset lag, microseconds",
      keys: ["lag_us_p50", "lag_us_p95", "lag_us_p99", "lag_us_max"],
      lead: "The age of the oldest unconfirmed byte, from the broker's own histograms.",
    }),
    has("confirm_us_p99") && lagSection(charts, group, range, {
      ...us, name: "confirm-us", title: "Append to confirm",
      keys: ["confirm_us_p50", "confirm_us_p95", "confirm_us_p99", "confirm_us_max"],
      lead: "How long each append waited until the SyncStateSet had confirmed it.",
    }),
  ].filter(Boolean);
  const size = { unit: 1_000, text: bytes };
  const replicas = (options) => replicaSection(charts, group, range, options);
  return el("div", { class: "pair" },
    lagSection(charts, group, range, {
      ...ms, name: "lag-ms", title: "confirmOffset lag, time", keys: ["ms_p50", "ms_p95", "ms_p99", "ms_max"],
      lead: "How long the oldest byte waited that its replicas had not confirmed, read once a second: the p99 of a minute is of 60 samples.",
    }),
    lagSection(charts, group, range, {
      ...size, name: "lag-bytes", title: "confirmOffset lag, bytes",
      keys: ["bytes_p50", "bytes_p95", "bytes_p99", "bytes_max"],
      lead: "Written by the master, not yet confirmed by the SyncStateSet.",
    }),
    ...fine,
    replicas({ ...ms, name: "replica-ms", title: "Lag per replica, time", key: "ms_max" }),
    replicas({
      ...size, name: "replica-bytes", title: "Lag per replica, bytes", key: "bytes_max",
      lead: "Behind its master, highest of the window. Dashed: it is down, and its last position counts.",
    }));
}

/** Consumers that are behind, messages and time; nothing where no broker reports any. */
function consumerSections(charts, { consumers, failovers, unknown }, range) {
  if (!consumers.length) return "";
  const section = ({ unit, text, key, ...words }) => {
    const rows = consumers.flatMap(({ name, ts, [key]: values }) =>
      ts.map((at, i) => ({ at, name, most: values[i] })).filter(({ most }) => most !== null));
    return chartSection(charts, {
      ...words, rows, most: text(highest(rows.map((row) => row.most))),
      columns: [
        timeColumn("ts", "Window", (row) => row.at), column("consumer", "Consumer group, topic", (row) => row.name),
        numberColumn(key, "Most", (row) => row.most, text),
      ],
      empty: ["No consumer_lag records in this range. Masters write them each minute; then run", RUN],
      option: () => Charts.lagOption(range, failovers, {
        unit, text, unknown, lines: consumers.map((each, i) => ({ ...each, broker_id: i + 1, values: each[key] })),
      }),
    });
  };
  const most = "Masters report once a minute. The ten that are behind the most.";
  return el("div", { class: "pair" },
    section({ unit: 10, text: (n) => count(Math.round(n)), key: "lag_messages_max", name: "consumer-messages", title: "Consumers behind, messages",
      lead: `Stored and not consumed, all queues of a topic together. ${most}` }),
    section({ unit: 1_000, text: duration, key: "lag_ms_max", name: "consumer-ms", title: "Consumers behind, time",
      lead: `How long ago the oldest message was stored that is not consumed. ${most}` }));
}

/* ---- the tables ---- */

function failoverTable({ failovers }) {
  const rows = failovers.map((each, i) => ({ ...each, number: i + 1 }));
  const parts = (row) => [["part-1", row.detect_ms], ["part-2", row.elect_ms], ["part-3", row.ready_ms]];
  const longest = highest(rows.map((row) => parts(row).reduce((sum, [, ms]) => sum + ms, 0)));
  const small = (text, kind = null) => (text ? el("small", { class: kind }, text) : null);
  const term = (kind, name, text) =>
    el("div", {}, el("dt", {}, kind && el("i", { class: `swatch ${kind}` }), name), el("dd", {}, text));
  return tableSection({
    name: "failovers", title: "Fail-overs",
    lead: "Every master that was replaced, and how long each part took; newest first.",
    rows: rows.reverse(),
    columns: [
      column("number", "#", (row) => row.number, { node: (row, text) => el("span", { class: "mark" }, text) }),
      timeColumn("elected_ts", "Elected", (row) => row.elected_ts),
      numberColumn("gap_ms", "Producer saw", (row) => row.gap_ms, duration),
      column("old_master", "Lost master", (row) => row.old_master, {
        text: replica, node: (row, text) => [text, small(row.killed_program && `${row.killed_program} killed`)],
      }),
      column("new_master", "New master", (row) => row.new_master, {
        text: replica, node: (row, text) => [text, small(row.unclean ? "unclean" : "", "danger")],
      }),
      numberColumn("detect_ms", "Detect", (row) => row.detect_ms, duration),
      numberColumn("elect_ms", "Elect", (row) => row.elect_ms, duration),
      numberColumn("ready_ms", "Ready", (row) => row.ready_ms, duration),
      // In the page the parts as lengths; in the CSV the program that was killed, which has no column of its own.
      column("killed_program", "Detect, elect, ready", (row) => row.killed_program, {
        node: (row) => bar(parts(row), longest, "detect, elect and ready as lengths"),
      }),
      numberColumn("master_epoch", "masterEpoch", (row) => row.master_epoch),
      column("reason", "Reason", (row) => row.reason, { wide: true }),
    ],
    below: el("dl", { class: "terms" },
      term("part-1", "Detect", "from the fault, or where no producer told of it from the lost master's last heartbeat, until a controller knew"),
      term("part-2", "Elect", "until the new master was chosen"),
      term("part-3", "Ready", "until the controllers had agreed and it accepted messages"),
      term(null, "Producer saw", "from the fault until the first acknowledgement of a send that was started after it")),
    empty: ["No master was replaced in this range. To see one replaced, the demo kills masters under traffic:", DEMO],
  });
}

function outOfSync({ members }) {
  const total = (spans, of) => spans.filter(of).reduce((sum, span) => sum + span.to - span.from, 0);
  const rows = members.map(({ broker_id, spans }) => {
    const [ms, known] = [total(spans, ({ state: each }) => each === "out"), total(spans, () => true)];
    return { broker_id, ms, known, share: ms / Math.max(1, known) };
  });
  const link = (row, text) => {
    const current = String(row.broker_id) === state().replica;
    return el("a", { href: hashWith({ replica: current ? null : String(row.broker_id) }), "aria-current": current ? "true" : null }, text);
  };
  return tableSection({
    name: "outofsync", title: "Time out of sync", rows,
    lead: "Not in the SyncStateSet: stopped, restarting or behind. Choose a replica to see its lag alone.",
    columns: [
      column("broker_id", "Replica", (row) => row.broker_id, { text: replica, node: link }),
      numberColumn("out_of_sync_ms", "Out of sync", (row) => row.ms, duration),
      column("share", "Share", (row) => row.share, { text: (share) => `${round(100 * share)} %`, num: true }),
      column("range", "Of the time known", (row) => row.known, { node: (row) => bar([["out", row.share]], 1, "share as a length") }),
    ],
    empty: ["No replica is known in this range; run", RUN],
  });
}

function clockTable({ clock_skew }) {
  if (!clock_skew.length) return "";
  return tableSection({
    name: "clocks", title: "Clocks", lead: "How far a broker's clock is behind the controller's; below 0: ahead.", rows: clock_skew,
    columns: [
      column("broker_id", "Replica", (row) => row.broker_id, { text: replica }),
      numberColumn("offset_ms", "Behind", (row) => row.offset_ms, (ms) => (ms < 0 ? `-${duration(-ms)}` : duration(ms))),
      numberColumn("samples", "Samples", (row) => row.samples),
      column("source", "Measured by", (row) => row.source),
    ],
    empty: ["", ""],
  });
}

function changeTable({ changes }) {
  const words = { electMaster: "election", cleanBrokerData: "clean" };
  const word = (row) => words[row.type] ?? (row.left.length ? "shrink" : "expand");
  const chip = (row) => (row.unclean
    ? el("span", { class: "chip failed" }, `unclean ${word(row)}`)
    : el("span", { class: `chip ${word(row)}` }, word(row)));
  return tableSection({
    name: "changes", title: "Changes", lead: "What the controllers agreed on, newest first.",
    rows: [...changes].reverse(),
    columns: [
      timeColumn("ts", "Time", (row) => row.ts),
      column("change", "Change", word, { node: chip }),
      column("left", "Left", (row) => row.left, { text: list }),
      column("joined", "Joined", (row) => row.joined, { text: list }),
      column("sync_state_set", "SyncStateSet", (row) => row.sync_state_set, { text: (ids) => `{${ids.join(", ")}}` }),
      numberColumn("sync_state_set_epoch", "its epoch", (row) => row.sync_state_set_epoch),
      column("master_broker_id", "Master", (row) => row.master_broker_id, { text: replica }),
      numberColumn("master_epoch", "masterEpoch", (row) => row.master_epoch),
      column("reason", "Reason", (row) => row.reason, { text: (reason) => REASONS[reason] || reason }),
      numberColumn("event_id", "Event", (row) => row.event_id),
    ],
    empty: ["The SyncStateSet did not change in this range. To see it change:", DEMO],
  });
}

/* ---- the time shown, and the way back ---- */

const RANGES = { "1 h": 3_600_000, "6 h": 21_600_000, "24 h": 86_400_000, "7 days": 604_800_000 };

function rangeBar(group) {
  const { from_ts, to_ts } = page.index;
  const { from, to, window } = group.range;
  const button = (text, changes, pressed) =>
    el("button", { type: "button", "aria-pressed": String(pressed), click: () => goTo(changes) }, text);
  const asked = state();
  const buttons = page.embedded ? [] : [
    ...Object.entries(RANGES).filter(([, ms]) => ms < to_ts - from_ts).map(([text, ms]) => {
      const start = String(to_ts - ms);
      return button(text, { from: start, to: String(to_ts + 1) }, asked.from === start);
    }),
    button("everything", { from: String(from_ts), to: String(to_ts + 1) }, asked.from === String(from_ts)),
  ];
  const back = page.index.groups.length > 1 ? el("a", { href: fleetHash(), class: "back" }, "‹ Fleet") : "";
  const ofReplica = asked.replica ? el("a", { href: hashWith({ replica: null }), class: "back" }, `${replica(asked.replica)} ✕`) : "";
  const shown = el("span", { class: "lead" }, `${day(from)} ${clock(from)} – ${time(to)} UTC in windows of ${duration(window)}`);
  return el("nav", { class: "controls", "aria-label": "Time" }, back, ...buttons, ofReplica, shown);
}

export function groupParts(group, charts) {
  const { range, incidents } = group;
  const named = incidents.map((each) => ({ ...each, replica: each.replica ?? null }));
  return [
    rangeBar(group), verdict(group), tiles(group, range),
    named.length || page.index.groups.length > 1 ? incidentTable(named, named.length, "group-incidents") : "",
    membership(charts, group, range), failoverTable(group), lagSections(charts, group, range), consumerSections(charts, group, range),
    el("div", { class: "pair" }, outOfSync(group), recordTable()), clockTable(group), changeTable(group), footer(),
  ];
}
