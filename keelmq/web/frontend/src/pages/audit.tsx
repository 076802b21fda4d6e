/** The audit log of the program that serves this page. */

import { useState } from "preact/hooks";
import { useGet } from "../api/fetched";
import { Badge, Command, ErrorNote, Loading, Note, Page, Select, type Tone } from "../components/basic";
import { SearchField } from "../components/data";
import { Table, type Column } from "../components/table";
import { count } from "../lib/format";
import { useStore } from "../lib/store";
import { route, setQuery } from "../router";
import type { AuditView } from "./data_types";

type Entry = Record<string, unknown>;
const TONES: Readonly<Record<string, Tone>> = { ok: "ok", refused: "failed", failed: "failed", unknown: "warning" };
const OUTCOMES = [["", "all"], ["ok", "ok"], ["refused", "refused"], ["failed", "failed"], ["unknown", "unknown"]] as const;

function text(value: unknown): string {
  return value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);
}

const COLUMNS: readonly Column<Entry>[] = [
  { key: "ts", title: "Time (UTC)", cell: (row) => text(row["ts"]).replace("T", " ").replace("Z", "") },
  { key: "outcome", title: "Outcome", cell: (row) => <Badge tone={TONES[text(row["outcome"])] ?? "plain"}>{text(row["outcome"]) || "–"}</Badge> },
  { key: "user", title: "Who", cell: (row) => <>{text(row["user"]) || (row["claimed"] ? `${text(row["claimed"])}?` : "–")} <code class="dim">{text(row["address"])}</code></> },
  { key: "what", title: "What", cell: (row) => text(row["operation"]) || text(row["code"]) },
  { key: "on", title: "On", cell: (row) => <code>{text(row["fields"])}</code>, isWide: true },
  { key: "remark", title: "Remark", cell: (row) => text(row["remark"]) || "–", isWide: true },
];

export function Audit() {
  const { query } = useStore(route);
  const [before, setBefore] = useState("");
  const answer = useGet<AuditView>("audit", { operation: query.get("q"), user: query.get("user"), outcome: query.get("outcome"), before, limit: 100 });
  const view = answer.value;
  return (
    <Page title="Audit" lead={view?.note}>
      <section class="card">
        <div class="table-tools">
          <SearchField name="q" label="Part of the request's name" />
          <SearchField name="user" label="User" />
          <Select label="Outcome" value={query.get("outcome") ?? ""} options={OUTCOMES} onValue={(value) => { setBefore(""); setQuery({ outcome: value || undefined }); }} />
        </div>
        <ErrorNote text={answer.error} again={answer.again} />
        {answer.isLoading && !view && <Loading what="the audit log" />}
        {view && (
          <>
            {view.problem && <Note tone="warning">{view.problem}</Note>}
            {view.cut && <Note tone="warning">{view.cut}</Note>}
            {view.unreadableLines > 0 && <Note tone="warning">{count(view.unreadableLines)} lines are damaged and not shown.</Note>}
            <Table caption="Audit log" rows={view.entries} columns={COLUMNS} rowKey={(row) => JSON.stringify(row)} empty="No such line." />
            <div class="actions">
              {before && <button type="button" onClick={() => setBefore("")}>Newest</button>}
              {view.next && <button type="button" onClick={() => setBefore(view.next ?? "")}>Older</button>}
            </div>
            <small>The same on the command line</small> <Command line={view.command} />
          </>
        )}
      </section>
    </Page>
  );
}
