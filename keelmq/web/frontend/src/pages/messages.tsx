/** Messages of a topic: by id, by key, or by time. */

import { useEffect, useState } from "preact/hooks";
import { errorText, get } from "../api/client";
import { Command, ErrorNote, Field, Loading, Note, Page, Select } from "../components/basic";
import { Silent } from "../components/data";
import { Table, type Column } from "../components/table";
import { localTime, messageLink, timeOf } from "../lib/data";
import { bytes, count } from "../lib/format";
import { useStore } from "../lib/store";
import { go, linkWith, route } from "../router";
import { Time } from "../components/basic";
import type { MessageRow, SearchView } from "./data_types";

export const MESSAGE_COLUMNS: readonly Column<MessageRow>[] = [
  { key: "stored", title: "Stored", cell: (row) => <a href={messageLink(row)}><Time ms={row.storeMs} /></a>, sort: (row) => row.storeMs, width: "11rem" },
  { key: "keys", title: "Keys", cell: (row) => row.keys || "–", sort: (row) => row.keys },
  { key: "tags", title: "Tag", cell: (row) => row.tags || "–", sort: (row) => row.tags, isWide: true },
  { key: "place", title: "Broker, queue, offset", cell: (row) => `${row.brokerName} · ${row.queueId} · ${count(row.queueOffset)}`, isWide: true },
  { key: "size", title: "Size", cell: (row) => bytes(row.bodyBytes), sort: (row) => row.bodyBytes, isNumber: true },
  { key: "preview", title: "Body", cell: (row) => <code class="preview">{row.preview || "–"}</code> },
];

const WAYS = [["time", "by time"], ["key", "by key"], ["id", "by id"]] as const;
export const LIMIT = 50;

/** Pages of a search; each is asked for when its user wants it. */
export function useSearch(path: string | null, query: Readonly<Record<string, string | number | undefined>>) {
  const key = JSON.stringify([path, query]);
  const [rows, setRows] = useState<readonly MessageRow[]>([]);
  const [last, setLast] = useState<SearchView | null>(null);
  const [error, setError] = useState("");
  const [isLoading, setLoading] = useState(false);
  const ask = async (cursor: string | null, before: readonly MessageRow[], signal?: AbortSignal): Promise<void> => {
    if (path === null) return;
    setLoading(true);
    setError("");
    try {
      const view = await get<SearchView>(path, { ...query, cursor }, signal);
      setRows([...before, ...view.messages]);
      setLast(view);
    } catch (reason) {
      if (!signal?.aborted) setError(errorText(reason));
    } finally {
      if (!signal?.aborted) setLoading(false);
    }
  };
  useEffect(() => {
    const stop = new AbortController();
    setRows([]);
    setLast(null);
    void ask(null, [], stop.signal);
    return () => stop.abort();
  }, [key]);
  return { rows, last, error, isLoading, more: () => void ask(last?.next ?? null, rows), again: () => void ask(null, []) };
}

export function Messages() {
  const { query } = useStore(route);
  const asked = { topic: query.get("topic") ?? "", key: query.get("key") ?? "", id: query.get("id") ?? "", begin: query.get("begin") ?? "", end: query.get("end") ?? "" };
  const [topic, setTopic] = useState(asked.topic);
  const [way, setWay] = useState<string>(asked.id ? "id" : asked.key ? "key" : "time");
  const [text, setText] = useState(asked.id || asked.key);
  const [begin, setBegin] = useState(localTime(Number(asked.begin) || Date.now() - 3_600_000));
  const [end, setEnd] = useState(localTime(Number(asked.end) || Date.now() + 60_000));
  const search = useSearch(asked.topic ? "messages" : null, { ...asked, limit: asked.key || asked.id ? 64 : LIMIT });
  const submit = (event: Event): void => {
    event.preventDefault();
    const times = way === "time" ? { begin: String(timeOf(begin) ?? ""), end: String(timeOf(end) ?? "") } : {};
    go(linkWith("/messages", { topic: topic.trim(), [way]: way === "time" ? undefined : text.trim(), ...times }));
    if (route.get().query.toString() === new URLSearchParams(location.hash.split("?")[1]).toString()) search.again();
  };
  return (
    <Page title="Messages" actions={<a class="button" href={linkWith("/trace", { id: asked.id })}>Trace of a message</a>}>
      <section class="card">
        <form class="table-tools" onSubmit={submit}>
          <Field label="Topic" value={topic} onValue={setTopic} input={{ name: "topic", required: true, spellcheck: false }} />
          <Select label="Search" value={way} options={WAYS} onValue={setWay} />
          {way !== "time" && <Field label={way === "key" ? "One of its keys" : "Id of the producer or of the broker"} value={text} onValue={setText} input={{ name: way, required: true, spellcheck: false }} />}
          {way === "time" && <Field label="Stored from" value={begin} onValue={setBegin} input={{ type: "datetime-local", step: 1 }} />}
          {way === "time" && <Field label="to" value={end} onValue={setEnd} input={{ type: "datetime-local", step: 1 }} />}
          <button type="submit" class="primary">Search</button>
        </form>
        <Results search={search} caption="Messages" />
        {asked.topic && asked.key && <small>On the command line: <Command line={`mqadmin queryMsgByKey -t ${quoted(asked.topic)} -k ${quoted(asked.key)}`} /></small>}
        {asked.topic && asked.id && <small>On the command line: <Command line={`mqadmin queryMsgByUniqueKey -t ${quoted(asked.topic)} -i ${quoted(asked.id)}`} /></small>}
      </section>
    </Page>
  );
}

function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

export function Results({ search, caption, columns = MESSAGE_COLUMNS }: { search: ReturnType<typeof useSearch>; caption: string; columns?: readonly Column<MessageRow>[] }) {
  const { rows, last } = search;
  return (
    <>
      <ErrorNote text={search.error} again={search.again} />
      {last && <Silent problems={last.problems} notAsked={last.notAsked} />}
      {last?.cut && <Note tone="warning">The search ended early: {last.cut}.</Note>}
      {last && <Table caption={caption} rows={rows} columns={columns} rowKey={(row) => `${row.brokerName} ${row.queueId} ${row.queueOffset}`} empty="No message was found." />}
      {search.isLoading && <Loading what="messages" />}
      {last?.next && <button type="button" disabled={search.isLoading} onClick={search.more}>Older messages</button>}
    </>
  );
}
