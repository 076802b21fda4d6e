/** One topic: its queues at each broker, who consumes it, and what can be done with it. */

import { useState } from "preact/hooks";
import { useGet } from "../api/fetched";
import { session } from "../api/client";
import { useAction } from "../components/action";
import { Age, Badge, Card, Empty, ErrorNote, Field, KeyValue, Loading, Page, Time } from "../components/basic";
import { Silent } from "../components/data";
import { FormThenAction } from "../components/form";
import { Table, type Column } from "../components/table";
import { groupOfConsumersLink, permText, searchLink } from "../lib/data";
import { count, rate } from "../lib/format";
import { useStore } from "../lib/store";
import { go, link, type Parameters } from "../router";
import type { QueueRow, TopicAtBroker, TopicView } from "./data_types";
import { TopicDialog, type TopicSettings } from "./topics";

const QUEUES: readonly Column<QueueRow>[] = [
  { key: "broker", title: "Broker", cell: (row) => row.brokerName, sort: (row) => row.brokerName },
  { key: "queue", title: "Queue", cell: (row) => row.queueId, sort: (row) => row.queueId, isNumber: true },
  { key: "min", title: "Oldest offset", cell: (row) => count(row.minOffset), sort: (row) => row.minOffset, isNumber: true, isWide: true },
  { key: "max", title: "Next offset", cell: (row) => count(row.maxOffset), sort: (row) => row.maxOffset, isNumber: true },
  { key: "messages", title: "Messages", cell: (row) => count(row.maxOffset - row.minOffset), sort: (row) => row.maxOffset - row.minOffset, isNumber: true },
  { key: "last", title: "Newest message", cell: (row) => <Time ms={row.lastUpdateMs} />, sort: (row) => row.lastUpdateMs, isNumber: true },
];

const BROKERS: readonly Column<TopicAtBroker>[] = [
  { key: "broker", title: "Broker", cell: (row) => <a href={link("/groups", row.cluster, row.brokerName)}>{row.brokerName}</a>, sort: (row) => row.brokerName },
  { key: "address", title: "Asked", cell: (row) => <><code>{row.address}</code> {row.isMaster ? "" : <Badge tone="warning">no master</Badge>}</>, isWide: true },
  { key: "read", title: "Read queues", cell: (row) => count(row.readQueues), sort: (row) => row.readQueues, isNumber: true },
  { key: "write", title: "Write queues", cell: (row) => count(row.writeQueues), sort: (row) => row.writeQueues, isNumber: true },
  { key: "perm", title: "Permission", cell: (row) => permText(row.perm) },
  { key: "attributes", title: "Attributes", cell: (row) => Object.entries(row.attributes).map(([key, value]) => `${key}=${value}`).join(", ") || "–", isWide: true },
  { key: "tps", title: "In/s", cell: (row) => rate(row.putTps), sort: (row) => row.putTps, isNumber: true },
  { key: "messages", title: "Messages", cell: (row) => count(row.messages), sort: (row) => row.messages, isNumber: true },
];

export function Topic({ parameters }: { parameters: Parameters }) {
  const name = parameters["name"] ?? "";
  const answer = useGet<TopicView>(`topics/${encodeURIComponent(name)}`, {}, 5_000);
  const { readOnly } = useStore(session);
  const action = useAction();
  const [open, setOpen] = useState<"" | "send" | "change">("");
  const view = answer.value;
  const cluster = view?.brokers[0]?.cluster ?? "";
  const close = (): void => {
    setOpen("");
    answer.again();
  };
  return (
    <Page
      title={name}
      badge={view && <Badge tone="plain">{view.kind}</Badge>}
      lead={<>{<a href="#/topics">Topics</a>} · {answer.takenAt > 0 && <Age at={answer.takenAt} />}</>}
      actions={
        <>
          <a class="button" href={searchLink(name)}>Messages</a>
          <button type="button" disabled={readOnly || !view} onClick={() => setOpen("send")}>Send a test message …</button>
          <button type="button" disabled={readOnly || !view} onClick={() => setOpen("change")}>Change …</button>
          <button
            type="button"
            disabled={readOnly || !view}
            onClick={() => action.start({ title: `Delete topic ${name}`, verb: "Delete", action: { name: "deleteTopic", parameters: { cluster, topic: name } }, onDone: (done) => done.done && go("#/topics") })}
          >
            Delete …
          </button>
        </>
      }
    >
      <ErrorNote text={answer.error} again={answer.again} />
      {answer.isLoading && !view && <Loading what="the topic" />}
      {view && (
        <>
          <Silent problems={view.problems} />
          <section class="card">
            <KeyValue items={[["Messages", count(view.messages)], ["In/s", rate(view.putTps)], ["Brokers", count(view.brokers.length)], ["Queues", count(view.queues.length + view.cut)]]} />
          </section>
          <Card title="Consumer groups">
            {view.consumers.length === 0 && <Empty>No group consumes it.</Empty>}
            <ul class="inline">{view.consumers.map((each) => <li key={each}><a href={groupOfConsumersLink(each)}>{each}</a></li>)}</ul>
          </Card>
          <Card title="Brokers"><Table caption="Brokers" name="b" rows={view.brokers} columns={BROKERS} rowKey={(row) => row.brokerName} /></Card>
          <Card title="Queues" aside={view.cut ? `${count(view.cut)} more are not shown` : undefined}>
            <Table caption="Queues" name="q" rows={view.queues} columns={QUEUES} rowKey={(row) => `${row.brokerName}:${row.queueId}`} text={(row) => row.brokerName} />
          </Card>
        </>
      )}
      {open === "send" && <SendDialog topic={name} onClose={close} />}
      {open === "change" && view && <TopicDialog before={settingsOf(view)} onClose={close} />}
      {action.dialog}
    </Page>
  );
}

function settingsOf(view: TopicView): TopicSettings {
  const first = view.brokers[0];
  return {
    cluster: first?.cluster ?? "",
    topic: view.name,
    readQueues: first?.readQueues ?? 8,
    writeQueues: first?.writeQueues ?? 8,
    perm: first?.perm ?? 6,
    order: first?.order ?? false,
    messageType: "",
  };
}

function SendDialog({ topic, onClose }: { topic: string; onClose: () => void }) {
  const [body, setBody] = useState("");
  const [tags, setTags] = useState("");
  const [keys, setKeys] = useState("");
  const [priority, setPriority] = useState("");
  const [isReady, setReady] = useState(false);
  const fields = (
    <>
      <label class="field">
        <span>Body, as UTF-8 text</span>
        <textarea rows={6} value={body} name="body" spellcheck={false} onInput={(event) => setBody(event.currentTarget.value)} />
      </label>
      <Field label="Tag" value={tags} onValue={setTags} input={{ name: "tags" }} />
      <Field label="Keys" hint="separated by blanks" value={keys} onValue={setKeys} input={{ name: "keys" }} />
      <Field label="Priority" hint="0 is the lowest; empty: none" value={priority} onValue={setPriority} input={{ type: "number", min: 0, max: 2_147_483_647, name: "priority" }} />
    </>
  );
  return <FormThenAction title={`Send a test message to ${topic}`} verb="Send" name="sendMessage" parameters={{ topic, body, tags, keys, priority: priority === "" ? null : Number(priority) }} fields={fields} isReady={isReady} setReady={setReady} isComplete={body !== ""} onClose={onClose} />;
}
