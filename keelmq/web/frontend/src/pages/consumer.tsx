/** One consumer group: lag in each queue, members, subscriptions, settings; resets and deletion. */

import { useState } from "preact/hooks";
import { useGet } from "../api/fetched";
import { session } from "../api/client";
import { useAction } from "../components/action";
import { Age, Badge, Card, Empty, ErrorNote, Field, KeyValue, Loading, Note, Page, Select, Time } from "../components/basic";
import { Silent } from "../components/data";
import { FormThenAction } from "../components/form";
import { Dialog } from "../components/dialog";
import { Table, type Column } from "../components/table";
import { consumeTypeText, localTime, startText, timeOf, topicLink, versionText } from "../lib/data";
import { count, plural, rate } from "../lib/format";
import { useStore } from "../lib/store";
import { go, link, type Parameters } from "../router";
import { GroupDialog, settingsOf } from "./consumer_dialog";
import type { GroupView, MemberRow, QueueLag } from "./data_types";

const QUEUES: readonly Column<QueueLag>[] = [
  { key: "topic", title: "Topic", cell: (row) => <a href={topicLink(row.topic)}>{row.topic}</a>, sort: (row) => row.topic },
  { key: "broker", title: "Broker", cell: (row) => row.brokerName, sort: (row) => row.brokerName },
  { key: "queue", title: "Queue", cell: (row) => row.queueId, sort: (row) => row.queueId, isNumber: true },
  { key: "end", title: "End", cell: (row) => count(row.brokerOffset), sort: (row) => row.brokerOffset, isNumber: true, isWide: true },
  { key: "offset", title: "Consumed to", cell: (row) => count(row.consumerOffset), sort: (row) => row.consumerOffset, isNumber: true, isWide: true },
  { key: "lag", title: "Lag", cell: (row) => count(row.lag), sort: (row) => row.lag, isNumber: true },
  { key: "flight", title: "In flight", cell: (row) => count(row.inFlight), sort: (row) => row.inFlight, isNumber: true, isWide: true },
  { key: "last", title: "Last consumed was of", cell: (row) => <Time ms={row.lastMs} />, sort: (row) => row.lastMs, isNumber: true },
  { key: "client", title: "Member", cell: (row) => row.clientId || "–", sort: (row) => row.clientId, isWide: true },
];

export function Consumer({ parameters }: { parameters: Parameters }) {
  const name = parameters["name"] ?? "";
  const answer = useGet<GroupView>(`consumers/${encodeURIComponent(name)}`, {}, 5_000);
  const { readOnly } = useStore(session);
  const action = useAction();
  const [isResetting, setResetting] = useState(false);
  const [isChanging, setChanging] = useState(false);
  const [client, setClient] = useState("");
  const view = answer.value;
  const cluster = view?.brokers[0]?.cluster ?? "";
  const settings = view && settingsOf(view);
  const members: readonly Column<MemberRow>[] = [
    { key: "id", title: "Client", cell: (row) => <button type="button" class="plain" onClick={() => setClient(row.clientId)}>{row.clientId}</button>, sort: (row) => row.clientId },
    { key: "address", title: "Address", cell: (row) => <code>{row.address}</code>, sort: (row) => row.address },
    { key: "language", title: "Language", cell: (row) => row.language, sort: (row) => row.language, isWide: true },
    { key: "version", title: "Version", cell: (row) => versionText(row.version), sort: (row) => row.version, isWide: true },
  ];
  return (
    <Page
      title={name}
      badge={view && <Badge tone={view.members.length ? "ok" : "warning"}>{view.members.length ? plural(view.members.length, "member") : "no member"}</Badge>}
      lead={<><a href="#/consumers">Consumers</a> · {answer.takenAt > 0 && <Age at={answer.takenAt} />}</>}
      actions={
        <>
          <a class="button" href={link("/dead-letters", name)}>Dead letters</a>
          <button type="button" disabled={readOnly || !view} onClick={() => setResetting(true)}>Reset offsets …</button>
          <button type="button" disabled={readOnly || !settings} onClick={() => setChanging(true)}>Change …</button>
          <button
            type="button"
            disabled={readOnly || !view}
            onClick={() => action.start({ title: `Delete group ${name}`, verb: "Delete", action: { name: "deleteGroup", parameters: { cluster, group: name } }, onDone: (done) => done.done && go("#/consumers") })}
          >
            Delete …
          </button>
        </>
      }
    >
      <ErrorNote text={answer.error} again={answer.again} />
      {answer.isLoading && !view && <Loading what="the group" />}
      {view && (
        <>
          <Silent problems={view.problems} />
          {view.differ && <Note tone="warning">The settings of this group are not the same at all brokers: see below.</Note>}
          <section class="card">
            <KeyValue items={[["Lag", count(view.lag)], ["Out/s", rate(view.tps)], ["Kind", view.kind], ["Model", view.messageModel.toLowerCase() || "–"], ["Type", consumeTypeText(view.consumeType)], ["Begins", startText(view.consumeFromWhere)]]} />
          </section>
          <Card title="Queues" aside={view.cut ? `${count(view.cut)} more are not shown` : undefined}>
            <Table caption="Queues" name="q" rows={view.queues} columns={QUEUES} rowKey={(row) => `${row.topic} ${row.brokerName} ${row.queueId}`} text={(row) => `${row.topic} ${row.brokerName} ${row.clientId}`} sort="-lag" empty="It has consumed nothing yet." />
          </Card>
          <Card title="Members">
            <Table caption="Members" name="m" rows={view.members} columns={members} rowKey={(row) => row.clientId} text={(row) => `${row.clientId} ${row.address}`} empty="No member is connected." />
          </Card>
          <Card title="Subscriptions">
            {view.subscriptions.length === 0 && <Empty>Known while a member is connected.</Empty>}
            <ul class="inline">{view.subscriptions.map((each) => <li key={each.topic}><a href={topicLink(each.topic)}>{each.topic}</a> <code>{each.expression}</code>{each.type === "TAG" ? "" : ` (${each.type})`}</li>)}</ul>
          </Card>
          <Card title="Settings">
            {view.brokers.map((each) => (
              <details key={each.brokerName}>
                <summary>{each.brokerName} <code>{each.address}</code></summary>
                <pre class="body">{JSON.stringify(each.settings, null, 2)}</pre>
              </details>
            ))}
          </Card>
        </>
      )}
      {isResetting && view && <ResetDialog view={view} onClose={() => { setResetting(false); answer.again(); }} />}
      {isChanging && settings && <GroupDialog before={settings} onClose={() => { setChanging(false); answer.again(); }} />}
      {client && <ClientDialog group={name} client={client} onClose={() => setClient("")} />}
      {action.dialog}
    </Page>
  );
}

const WHERE = [["time", "to a time"], ["end", "to the end: skip everything accumulated"], ["begin", "to the oldest message"]] as const;

function ResetDialog({ view, onClose }: { view: GroupView; onClose: () => void }) {
  const topics = [...new Set([...view.queues.map((each) => each.topic), ...view.subscriptions.map((each) => each.topic)])].sort();
  const [topic, setTopic] = useState(topics.find((each) => !each.startsWith("%")) ?? topics[0] ?? "");
  const [where, setWhere] = useState<string>("time");
  const [when, setWhen] = useState(localTime(Date.now() - 3_600_000));
  const [isReady, setReady] = useState(false);
  const atMs = where === "end" ? -1 : where === "begin" ? 0 : timeOf(when);
  const fields = (
    <>
      <Select label="Topic" value={topic} options={topics.map((each) => [each, each] as const)} onValue={setTopic} />
      <Select label="Where it continues" value={where} options={WHERE} onValue={setWhere} />
      {where === "time" && <Field label="Time, of this browser" value={when} onValue={setWhen} input={{ type: "datetime-local", step: 1 }} />}
    </>
  );
  return <FormThenAction title={`Reset offsets of ${view.name}`} verb="Reset" name="resetOffset" parameters={{ group: view.name, topic, atMs }} fields={fields} isReady={isReady} setReady={setReady} isComplete={topic !== "" && atMs !== null} onClose={onClose} />;
}

function ClientDialog({ group, client, onClose }: { group: string; client: string; onClose: () => void }) {
  const answer = useGet<{ info: unknown }>(`consumers/${encodeURIComponent(group)}/client`, { id: client });
  return (
    <Dialog title={client} onClose={onClose}>
      <div class="dialog-body">
        <ErrorNote text={answer.error} again={answer.again} />
        {answer.isLoading && <Loading what="the member's answer" />}
        {answer.value && <pre class="body">{JSON.stringify(answer.value.info, null, 2)}</pre>}
      </div>
    </Dialog>
  );
}
