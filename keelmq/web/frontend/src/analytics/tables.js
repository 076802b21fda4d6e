/* Text and tables: how numbers and times are written, a table in the page, the same table as CSV.
 * Every string of the data becomes a text node, never HTML. Times are wall-clock ms UTC.
 * In all scripts of this page snake_case means a key of the page files. */

import { UNKNOWN, count } from "../lib/format";

export const TABLE_ROWS_MAX = 500; // in the page; a CSV has all of them

/** An element. A function among the attributes listens to the event of that name; null leaves one out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

/* ---- numbers and times ---- */

export const round = (value) => Number(value.toPrecision(3)).toLocaleString("en");
export const highest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
export const list = (values) => (values.length ? values.join(", ") : UNKNOWN);

export function duration(ms) {
  if (ms < 1_000) return `${round(ms)} ms`;
  if (ms < 60_000) return `${round(ms / 1_000)} s`;
  if (ms < 3_600_000) return `${round(ms / 60_000)} min`;
  return ms < 86_400_000 ? `${round(ms / 3_600_000)} h` : `${round(ms / 86_400_000)} days`;
}

export const microseconds = (us) => (us < 1_000 ? `${round(us)} µs` : duration(us / 1_000));

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(value, 1)) / 3));
  return `${round(value / 1_000 ** step)} ${units[step]}`;
}

export const day = (ts) => new Date(ts).toISOString().slice(0, 10);
export const clock = (ts, precise = false) => new Date(ts).toISOString().slice(11, precise ? 23 : 19);

export function ago(ts) {
  const past = (Date.now() - ts) / 1_000;
  const steps = [[86_400, "days"], [3_600, "h"], [60, "min"], [1, "s"]];
  const step = steps.find(([seconds]) => past >= seconds);
  return step ? `${Math.floor(past / step[0])} ${step[1]} ago` : "just now";
}

/* ---- columns: `of` a row is its value, in the CSV below `key`; `text` or `node` make the page's cell of it;
 * `wide`: it is a sentence, which may have several lines; `hidden`: it is in the CSV only ---- */

export const column = (key, head, of, rest = {}) => ({ key, head, of, text: String, ...rest });
export const numberColumn = (key, head, of, text = count) => column(key, head, of, { text, num: true });

function cell({ of, text, node, num, wide }, row) {
  const value = of(row);
  const missing = value === null || value === undefined || value === "";
  const content = node ? node(row, missing ? UNKNOWN : text(value)) : missing ? UNKNOWN : text(value);
  return el("td", { class: num ? "number" : wide ? "sentence" : null }, content);
}

export function dataTable(columns, rows, caption) {
  const shown = rows.slice(0, TABLE_ROWS_MAX);
  const cut = rows.length > shown.length;
  const note = cut && `The first ${count(shown.length)} of ${count(rows.length)} rows; the CSV has all.`;
  const visible = columns.filter(({ hidden }) => !hidden);
  const heads = visible.map(({ head, num }) => el("th", { scope: "col", class: num ? "number" : null }, head));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)),
      el("tbody", {}, shown.map((row) => el("tr", {}, visible.map((each) => cell(each, row)))))),
    cut ? el("p", { class: "lead" }, note) : null);
}

function csvField(value) {
  let text = Array.isArray(value) ? value.join(" ") : String(value ?? "");
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // a spreadsheet would compute it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csv(columns, rows) {
  const value = ({ of, iso }, row) => (iso && of(row) ? new Date(of(row)).toISOString() : of(row));
  const lines = [columns.map(({ key }) => key), ...rows.map((row) => columns.map((each) => value(each, row)))];
  return lines.map((line) => `${line.map(csvField).join(",")}\r\n`).join("");
}

export function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
