/** All consumer groups, those with the largest lag first. */

import { useState } from "preact/hooks";
import { session } from "../api/client";
import { useGet } from "../api/fetched";
import { Badge, ErrorNote, Loading, Page, Select } from "../components/basic";
import { PAGE_ROWS, Pager, SearchField, Silent, usePageOffset } from "../components/data";
import { Table, type Column } from "../components/table";
import { groupOfConsumersLink } from "../lib/data";
import { count, rate } from "../lib/format";
import { useStore } from "../lib/store";
import { route, setQuery } from "../router";
import { GroupDialog } from "./consumer_dialog";
import type { GroupRow, GroupsView } from "./data_types";

const COLUMNS: readonly Column<GroupRow>[] = [
  { key: "name", title: "Group", cell: (row) => <a href={groupOfConsumersLink(row.name)}>{row.name}</a> },
  { key: "kind", title: "Kind", cell: (row) => <Badge tone="plain">{row.kind}</Badge> },
  { key: "members", title: "Members", cell: (row) => (row.members === 0 ? <Badge tone="warning">none</Badge> : count(row.members)), isNumber: true },
  { key: "model", title: "Model", cell: (row) => row.messageModel.toLowerCase() || "–", isWide: true },
  { key: "topics", title: "Topics", cell: (row) => count(row.topics), isNumber: true, isWide: true },
  {
    key: "lag",
    title: "Lag",
    cell: (row) => <span title={row.unknownAt ? `${row.unknownAt} brokers did not tell it` : undefined}>{row.unknownAt && row.lag !== null ? "at least " : ""}{count(row.lag)}</span>,
    isNumber: true,
    hint: "Messages that are not consumed yet",
  },
  { key: "tps", title: "Out/s", cell: (row) => rate(row.tps), isNumber: true },
];
const KINDS = [["", "all"], ["normal", "normal"], ["fifo", "fifo"], ["system", "system"]] as const;
const SORTS = [["lag", "largest lag first"], ["name", "by name"]] as const;

export function Consumers() {
  const { query } = useStore(route);
  const { readOnly } = useStore(session);
  const [isCreating, setCreating] = useState(false);
  const offset = usePageOffset();
  const kind = query.get("kind") ?? "normal";
  const sort = query.get("sort") ?? "lag";
  const answer = useGet<GroupsView>("consumers", { q: query.get("q"), kind: kind === "all" ? "" : kind, sort, offset, limit: PAGE_ROWS }, 10_000);
  const view = answer.value;
  return (
    <Page
      title="Consumers"
      lead="Consumer groups, and how many messages each of them has not consumed yet."
      actions={<button type="button" class="primary" disabled={readOnly} onClick={() => setCreating(true)}>Create a group …</button>}
    >
      <section class="card">
        <div class="table-tools">
          <SearchField name="q" label="Part of the name" />
          <Select label="Kind" value={kind === "all" ? "" : kind} options={KINDS} onValue={(value) => setQuery({ kind: value || "all", offset: undefined })} />
          <Select label="Order" value={sort} options={SORTS} onValue={(value) => setQuery({ sort: value, offset: undefined })} />
        </div>
        <ErrorNote text={answer.error} again={answer.again} />
        {answer.isLoading && !view && <Loading what="consumer groups" />}
        {view && (
          <>
            <Silent problems={view.problems} notAsked={view.notAsked} />
            <Table caption="Consumer groups" rows={view.groups} columns={COLUMNS} rowKey={(row) => row.name} empty="No group matches." />
            <Pager found={view.found} total={view.total} shown={view.groups.length} />
          </>
        )}
      </section>
      {isCreating && <GroupDialog onClose={() => { setCreating(false); answer.again(); }} />}
    </Page>
  );
}
