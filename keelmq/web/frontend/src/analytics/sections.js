"use strict";
/* Sections of a page: heading, content, the data as a table and as CSV, its age; or how to get data. */

const RUN = "./run keelmq analytics run --input TELEMETRY --output OUT";
const DEMO = "./run keelmq demo";

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

const tableSection = (rest) =>
  section({ table: false, content: [dataTable(rest.columns, rest.rows, rest.title), rest.below || ""], ...rest });

/** A section whose content is a chart, drawn once it stands in the page and has a size. */
function chartSection(charts, { option, most, height = 250, ...rest }) {
  const place = el("div", { class: "chart" });
  place.style.height = `${height}px`;
  const summary = most ? `, highest ${most}` : "";
  const label = `${rest.title}, a chart over time${summary}; the same data is in the table below.`;
  if (rest.rows.length) charts.push(() => Charts.draw(place, option(), label));
  return section({ ...rest, content: [place] });
}

function bar(pieces, whole, label) {
  const parts = pieces.filter(([, value]) => value > 0).map(([kind, value]) => {
    const part = el("i", { class: kind });
    part.style.width = `${Math.min(100, (100 * value) / Math.max(whole, 1))}%`;
    return part;
  });
  return el("div", { class: "bar", role: "img", "aria-label": label, title: label }, parts);
}
