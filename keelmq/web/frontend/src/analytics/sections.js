/* Sections of a page: heading, content, the data as a table and as CSV, its age; or how to get data. */

import { plural } from "../lib/format";
import * as Charts from "./charts";
import { age, page, time } from "./model";
import { column, csv, dataTable, el, numberColumn, save } from "./tables";

export const RUN = "./run keelmq analytics run --input TELEMETRY --output OUT";
export const DEMO = "./run keelmq demo";

/** A column of times; in the CSV they are ISO 8601. */
export const timeColumn = (key, head, of) => column(key, `${head} (UTC)`, of, { text: (ts) => time(ts, true), iso: true });

/* ---- a section: heading, content, data as a table and as CSV, age; or how to get data ---- */

function section({ name, title, lead, columns, rows, content, empty, table = true }) {
  const header = el("header", {}, el("div", {}, el("h2", { id: name }, title), el("p", { class: "lead" }, lead)));
  const card = el("section", { class: `card ${name}`, "aria-labelledby": name }, header);
  if (!rows.length) {
    card.append(el("div", { class: "empty" }, el("p", {}, empty[0]), el("code", {}, empty[1])));
    return card;
  }
  const download = () => save(`keelmq-${name}.csv`, csv(columns, rows));
  header.append(el("button", { type: "button", click: download, "aria-label": `${title}: download as CSV` }, "CSV"));
  const data = table ? tableBelow(name, () => dataTable(columns, rows, title)) : null;
  card.append(...content, el("div", { class: "foot" }, data, el("p", { class: "age" }, age())));
  return card;
}

/** A table that is made when it is opened, and stays open when the page is drawn again. */
function tableBelow(name, make) {
  const details = el("details", { open: page.open.has(name) ? "" : null }, el("summary", {}, "Data as a table"));
  const fill = () => {
    page.open[details.open ? "add" : "delete"](name);
    if (details.open && details.children.length === 1) details.append(make());
  };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

export const tableSection = (rest) =>
  section({ table: false, content: [dataTable(rest.columns, rest.rows, rest.title), rest.below || ""], ...rest });

/** A section whose content is a chart, drawn once it stands in the page and has a size. */
export function chartSection(charts, { option, most, height = 250, ...rest }) {
  const place = el("div", { class: "chart" });
  place.style.height = `${height}px`;
  const summary = most ? `, highest ${most}` : "";
  const label = `${rest.title}, a chart over time${summary}; the same data is in the table below.`;
  if (rest.rows.length) charts.push(() => Charts.draw(place, option(), label));
  return section({ ...rest, content: [place] });
}

export function bar(pieces, all, label) {
  const parts = pieces.filter(([, value]) => value > 0).map(([kind, value]) => {
    const part = el("i", { class: kind });
    part.style.width = `${Math.min(100, (100 * value) / Math.max(all, 1))}%`;
    return part;
  });
  return el("div", { class: "bar", role: "img", "aria-label": label, title: label }, parts);
}

/* ---- of every page ---- */

const VERDICTS = { ok: ["✓", "All well"], warning: ["!", "Worth a look"], failed: ["✕", "Data at risk"] };

export function verdictBox(level, text) {
  const [sign, word] = VERDICTS[level];
  return el("div", { class: `verdict ${level}` }, el("span", { class: "big-sign", "aria-hidden": "true" }, sign),
    el("p", {}, el("strong", {}, `${word}. `), text));
}

export const tile = (label, value, note) =>
  el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, value, el("small", {}, note)));

const RECORDS = {
  ha_sample: "one a second from each broker",
  role_change: "finished role changes",
  controller_event: "what the controllers agreed on",
  send_gap: "fail-overs measured by a producer",
  clock_sample: "brokers' clocks compared with the controller's",
  consumer_lag: "consumers behind, as masters see them",
};

/** Of the whole run: what was read, and what was wrong with it. */
export function recordTable() {
  const { quality } = page.index;
  const names = [...new Set(quality.flatMap(Object.keys))].filter((name) => name !== "record");
  const hidden = (name) => name !== "rows" && quality.every((row) => !row[name]);
  return tableSection({
    name: "records", title: "Records read", lead: "What all of this was computed from, and what was wrong with it. Counts that are all 0 are in the CSV only.",
    rows: quality, empty: ["Nothing is known about the records that were read. To count them, run", RUN],
    columns: [
      column("record", "Record", (row) => row.record),
      ...names.map((name) => ({ ...numberColumn(name, name.replaceAll("_", " "), (row) => row[name]), hidden: hidden(name) })),
      column("meaning", "Meaning", (row) => RECORDS[row.record] || "", { wide: true }),
    ],
  });
}

export function footer() {
  const { inputs } = page.index;
  return el("footer", {},
    el("p", {}, "Times are UTC. Grey or hatched is unknown: no data, which is not 0. Lag axes are linear up to their first step, logarithmic above it; so zero shows too."),
    el("details", {}, el("summary", {}, plural(inputs.length, "input")),
      el("ul", {}, inputs.map((input) => el("li", {}, input)))));
}
