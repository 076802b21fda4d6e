/** Connected producers, by group. */

import { useGet } from "../api/fetched";
import { ErrorNote, Loading, Page } from "../components/basic";
import { PAGE_ROWS, Pager, SearchField, Silent, usePageOffset } from "../components/data";
import { Table, type Column } from "../components/table";
import { versionText } from "../lib/data";
import { useStore } from "../lib/store";
import { route } from "../router";
import type { ProducerRow, ProducersView } from "./data_types";

const COLUMNS: readonly Column<ProducerRow>[] = [
  { key: "group", title: "Group", cell: (row) => row.group, sort: (row) => row.group },
  { key: "client", title: "Client", cell: (row) => row.clientId, sort: (row) => row.clientId },
  { key: "address", title: "Address", cell: (row) => <code>{row.address}</code>, sort: (row) => row.address },
  { key: "language", title: "Language", cell: (row) => row.language, sort: (row) => row.language, isWide: true },
  { key: "version", title: "Version", cell: (row) => versionText(row.version), sort: (row) => row.version, isWide: true },
  { key: "brokers", title: "Connected to", cell: (row) => row.brokers.join(", "), isWide: true },
];

export function Producers() {
  const { query } = useStore(route);
  const answer = useGet<ProducersView>("producers", { q: query.get("q"), offset: usePageOffset(), limit: PAGE_ROWS }, 10_000);
  const view = answer.value;
  return (
    <Page title="Producers" lead="Clients that send messages, as long as they are connected.">
      <section class="card">
        <div class="table-tools"><SearchField name="q" label="Group, client or address" /></div>
        <ErrorNote text={answer.error} again={answer.again} />
        {answer.isLoading && !view && <Loading what="producers" />}
        {view && (
          <>
            <Silent problems={view.problems} notAsked={view.notAsked} />
            <Table caption="Producers" rows={view.producers} columns={COLUMNS} rowKey={(row) => `${row.group} ${row.clientId}`} empty="No producer is connected." />
            <Pager found={view.found} total={view.total} shown={view.producers.length} />
          </>
        )}
      </section>
    </Page>
  );
}
