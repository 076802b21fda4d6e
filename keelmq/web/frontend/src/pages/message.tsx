/** One message. Its body is somebody else's text: it is shown as text, and only as text. */

import { useGet } from "../api/fetched";
import { Badge, Card, Empty, ErrorNote, KeyValue, Loading, Page, Time, type Tone } from "../components/basic";
import { Silent } from "../components/data";
import { Table } from "../components/table";
import { groupOfConsumersLink, pretty, topicLink } from "../lib/data";
import { bytes, count, duration } from "../lib/format";
import { linkWith, setQuery, route, type Parameters } from "../router";
import { useStore } from "../lib/store";
import type { MessageView, TraceView } from "./data_types";

const MORE_BYTES = 1 << 20;
const TONES: Readonly<Record<string, Tone>> = { consumed: "ok", "not consumed": "warning", pulled: "info" };

export function MessagePage({ parameters }: { parameters: Parameters }) {
  const { topic = "", broker = "", queue = "", offset = "" } = parameters;
  const { query } = useStore(route);
  const isWhole = query.get("body") === "more";
  const answer = useGet<MessageView>("message", { topic, broker, queue, offset, body: isWhole ? MORE_BYTES : undefined });
  const view = answer.value;
  const row = view?.message;
  return (
    <Page title={`Message ${offset} of ${topic}`} lead={<><a href={topicLink(topic)}>{topic}</a> · {broker} · queue {queue}</>} actions={row?.msgId ? <a class="button" href={linkWith("/trace", { id: row.msgId })}>Trace</a> : undefined}>
      <ErrorNote text={answer.error} again={answer.again} />
      {answer.isLoading && !view && <Loading what="the message" />}
      {view && row && (
        <>
          <Silent problems={view.problems} />
          <section class="card">
            <KeyValue
              items={[
                ["Id of the producer", <code>{row.msgId || "–"}</code>],
                ["Id of the broker", <code>{row.offsetMsgId}</code>],
                ["Keys", row.keys || "–"],
                ["Tag", row.tags || "–"],
                ["Priority", row.priority ?? "–"],
                ["Stored", <Time ms={row.storeMs} />],
                ["Sent", <Time ms={row.bornMs} />],
                ["Sent by", <code>{row.bornHost}</code>],
                ["Stored at", <code>{view.storeHost}</code>],
                ["CommitLog offset", count(view.commitLogOffset)],
                ["Size in the log", bytes(view.storedBytes)],
                ["Redelivered", count(row.reconsumeTimes)],
                ...(row.originalTopic ? [["Original topic", <a href={topicLink(row.originalTopic)}>{row.originalTopic}</a>] as const] : []),
              ]}
            />
          </section>
          <Card title="Body" aside={<>{view.body.kind} · {bytes(view.body.bytes)}{view.body.shownBytes < view.body.bytes ? `, the first ${bytes(view.body.shownBytes)}` : ""}</>}>
            {view.body.kind === "packed" && <p class="dim">The body is compressed in a way that is not read here.</p>}
            <pre class="body">{view.body.kind === "json" ? pretty(view.body.text) : view.body.text}</pre>
            {view.body.shownBytes < view.body.bytes && !isWhole && <button type="button" onClick={() => setQuery({ body: "more" })}>Show more</button>}
          </Card>
          <Card title="Consumer groups" aside={view.moreGroups ? `${count(view.moreGroups)} more` : undefined}>
            <Table
              caption="Consumer groups"
              rows={view.tracks}
              rowKey={(each) => each.group}
              empty="No group consumes this topic."
              columns={[
                { key: "group", title: "Group", cell: (each) => <a href={groupOfConsumersLink(each.group)}>{each.group}</a> },
                { key: "state", title: "This message", cell: (each) => <Badge tone={TONES[each.state] ?? "plain"}>{each.state}</Badge> },
                { key: "online", title: "Members", cell: (each) => (each.isOnline === null ? "unknown" : each.isOnline ? "connected" : "none") },
                { key: "remark", title: "Remark", cell: (each) => each.remark || "–" },
              ]}
            />
          </Card>
          <Card title="Properties">
            <KeyValue items={Object.entries(view.properties).sort().map(([name, value]) => [name, <code>{value}</code>] as const)} />
          </Card>
        </>
      )}
    </Page>
  );
}

/** When it was sent and consumed, on one line of time. */
export function Trace() {
  const { query } = useStore(route);
  const id = query.get("id") ?? "";
  const answer = useGet<TraceView>(id ? "trace" : null, { id });
  const view = answer.value;
  const times = (view?.steps ?? []).flatMap((step) => (step.timeMs === null ? [] : [step.timeMs - (step.kind === "sent" ? (step.costMs ?? 0) : 0), step.timeMs]));
  const first = Math.min(...times);
  const span = Math.max(Math.max(...times) - first, 1);
  return (
    <Page title="Trace" lead="What the clients of a message wrote to the trace topic. They do so only if they are told to.">
      <section class="card">
        <form class="table-tools" onSubmit={(event) => { event.preventDefault(); setQuery({ id: String(new FormData(event.currentTarget).get("id") ?? "").trim() }); }}>
          <label class="field"><span>Id of the producer (msgId)</span><input name="id" required defaultValue={id} spellcheck={false} /></label>
          <button type="submit" class="primary">Show</button>
        </form>
        <ErrorNote text={answer.error} again={answer.again} />
        {id && answer.isLoading && <Loading what="the trace" />}
        {view && <Silent problems={view.problems} />}
        {view?.cut && <p class="dim">{view.cut}</p>}
        {view && view.steps.length === 0 && <Empty>No trace of this id: its clients did not trace it, or retention has deleted it.</Empty>}
        {view && view.steps.length > 0 && (
          <ol class="trace">
            {view.steps.map((step, at) => {
              const begin = step.timeMs === null ? null : ((step.timeMs - first) / span) * 100;
              const cost = Math.max(((step.costMs ?? 0) / span) * 100, 0.6);
              return (
                <li key={at}>
                  <Badge tone={step.status === "success" ? "ok" : step.status === "failed" ? "failed" : "plain"}>{step.kind}</Badge>{" "}
                  <strong>{step.group}</strong> <code>{step.client}</code> <Time ms={step.timeMs} />{" "}
                  {step.timeMs !== null && view.sentMs !== null && step.timeMs >= view.sentMs && <span class="dim">+{duration(step.timeMs - view.sentMs)}</span>}{" "}
                  {step.costMs !== null && <>took {duration(step.costMs)}</>} <span class="dim">{step.status}</span>
                  {begin !== null && <div class="trace-line" aria-hidden="true"><span style={{ left: `${Math.min(begin, 99)}%`, width: `${Math.min(cost, 100 - Math.min(begin, 99))}%` }} /></div>}
                </li>
              );
            })}
          </ol>
        )}
      </section>
    </Page>
  );
}
