/** All topics: the server filters and pages, so three thousand are no burden. */

import { useState } from "preact/hooks";
import { useGet } from "../api/fetched";
import { session } from "../api/client";
import { live } from "../api/live";
import { Badge, ErrorNote, Field, Loading, Page, Select } from "../components/basic";
import { FormThenAction } from "../components/form";
import { PAGE_ROWS, Pager, SearchField, Silent, usePageOffset } from "../components/data";
import { Table, type Column } from "../components/table";
import { permText, topicLink } from "../lib/data";
import { count } from "../lib/format";
import { useStore } from "../lib/store";
import { route, setQuery } from "../router";
import type { TopicRow, TopicsView } from "./data_types";

const KINDS = ["normal", "fifo", "delay", "transaction", "mixed", "retry", "dlq", "system"] as const;
/** Of an application's topics; the others belong to groups and brokers. */
const OWN = "own";

const COLUMNS: readonly Column<TopicRow>[] = [
  { key: "name", title: "Topic", cell: (row) => <a href={topicLink(row.name)}>{row.name}</a>, sort: (row) => row.name },
  { key: "kind", title: "Kind", cell: (row) => <Badge tone={row.kind === "dlq" ? "warning" : "plain"}>{row.kind}</Badge>, sort: (row) => row.kind },
  { key: "clusters", title: "Cluster", cell: (row) => row.clusters.join(", ") || "–", sort: (row) => row.clusters.join(), isWide: true },
  { key: "brokers", title: "Brokers", cell: (row) => count(row.brokers), sort: (row) => row.brokers, isNumber: true },
  { key: "read", title: "Read queues", cell: (row) => count(row.readQueues), sort: (row) => row.readQueues, isNumber: true, isWide: true },
  { key: "write", title: "Write queues", cell: (row) => count(row.writeQueues), sort: (row) => row.writeQueues, isNumber: true, isWide: true },
  { key: "perm", title: "Permission", cell: (row) => permText(row.perm), sort: (row) => row.perm, isWide: true },
];

export function Topics() {
  const { query } = useStore(route);
  const { readOnly } = useStore(session);
  const offset = usePageOffset();
  const kind = query.get("kind") ?? OWN;
  const [isCreating, setCreating] = useState(false);
  const path = kind === OWN ? `topics?${KINDS.slice(0, 5).map((each) => `kind=${each}`).join("&")}` : "topics";
  const answer = useGet<TopicsView>(path, { q: query.get("q"), kind: kind === OWN ? null : kind === "all" ? null : kind, offset, limit: PAGE_ROWS }, 15_000);
  const view = answer.value;
  const options = [
    [OWN, "topics of applications"] as const,
    ["all", "all"] as const,
    ...KINDS.map((each) => [each, `${each}${view ? ` (${count(view.counts[each] ?? 0)})` : ""}`] as const),
  ];
  return (
    <Page
      title="Topics"
      actions={<button type="button" class="primary" disabled={readOnly} onClick={() => setCreating(true)}>Create a topic …</button>}
    >
      <section class="card">
        <div class="table-tools">
          <SearchField name="q" label="Part of the name" />
          <Select label="Kind" value={kind} options={options} onValue={(value) => setQuery({ kind: value === OWN ? undefined : value, offset: undefined })} />
        </div>
        <ErrorNote text={answer.error} again={answer.again} />
        {answer.isLoading && !view && <Loading what="topics" />}
        {view && (
          <>
            <Silent problems={view.problems} notAsked={view.notAsked} />
            <Table caption="Topics" rows={view.topics} columns={COLUMNS} rowKey={(row) => row.name} empty="No topic matches." />
            <Pager found={view.found} total={view.total} shown={view.topics.length} />
          </>
        )}
      </section>
      {isCreating && <TopicDialog onClose={() => { setCreating(false); answer.again(); }} />}
    </Page>
  );
}

export interface TopicSettings {
  cluster: string;
  topic: string;
  readQueues: number;
  writeQueues: number;
  perm: number;
  order: boolean;
  messageType: string;
}

const TYPES = [["", "as it is"], ["NORMAL", "normal"], ["FIFO", "fifo"], ["DELAY", "delay"], ["TRANSACTION", "transaction"], ["MIXED", "mixed"], ["PRIORITY", "priority"]] as const;
const PERMS = [["6", "read, write"], ["4", "read"], ["2", "write"]] as const;

/** Creates a topic, or changes one. The preview asks the servers again after each change of a field. */
export function TopicDialog({ before, onClose }: { before?: TopicSettings; onClose: () => void }) {
  const { status } = useStore(live);
  const clusters = [...new Set((status?.groups ?? []).map((group) => group.cluster))].sort();
  const [wanted, setWanted] = useState<TopicSettings>(
    before ?? { cluster: clusters[0] ?? "", topic: "", readQueues: 8, writeQueues: 8, perm: 6, order: false, messageType: "NORMAL" },
  );
  const [isReady, setReady] = useState(false);
  const set = (change: Partial<TopicSettings>): void => {
    setWanted({ ...wanted, ...change });
    setReady(false);
  };
  const fields = (
    <>
      <Select label="Cluster" value={wanted.cluster} options={clusters.map((each) => [each, each] as const)} onValue={(cluster) => set({ cluster })} />
      <Field label="Topic" value={wanted.topic} onValue={(topic) => set({ topic: topic.trim() })} input={{ disabled: before !== undefined, spellcheck: false, name: "topic" }} />
      <Field label="Read queues at each master" value={String(wanted.readQueues)} onValue={(text) => set({ readQueues: Number(text) })} input={{ type: "number", min: 1 }} />
      <Field label="Write queues at each master" value={String(wanted.writeQueues)} onValue={(text) => set({ writeQueues: Number(text) })} input={{ type: "number", min: 1 }} />
      <Select label="Permission" value={String(wanted.perm)} options={PERMS} onValue={(perm) => set({ perm: Number(perm) })} />
      <Select label="Message type" value={wanted.messageType} options={TYPES} onValue={(messageType) => set({ messageType })} />
      <label class="check"><input type="checkbox" checked={wanted.order} onChange={() => set({ order: !wanted.order })} /> ordered: name servers keep the number of queues</label>
    </>
  );
  const title = before ? `Change topic ${before.topic}` : "Create a topic";
  return <FormThenAction title={title} verb={before ? "Change" : "Create"} name="updateTopic" parameters={{ ...wanted }} fields={fields} isReady={isReady} setReady={setReady} isComplete={wanted.topic !== "" && wanted.cluster !== ""} onClose={onClose} />;
}
