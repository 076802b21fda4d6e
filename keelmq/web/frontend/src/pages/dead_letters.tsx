/** Dead letters of a consumer group, and how they are sent again. */

import { useState } from "preact/hooks";
import { session } from "../api/client";
import { useAction } from "../components/action";
import { Field, Note, Page, Select } from "../components/basic";
import type { Column } from "../components/table";
import { groupOfConsumersLink, localTime, timeOf, topicLink } from "../lib/data";
import { count } from "../lib/format";
import { useStore } from "../lib/store";
import { go, link, route, setQuery, type Parameters } from "../router";
import type { MessageRow } from "./data_types";
import { LIMIT, MESSAGE_COLUMNS, Results, useSearch } from "./messages";

const DAY_MS = 86_400_000;
const MOST = 100;
const TO = [["group", "to this group only"], ["topic", "to every group of the topic"]] as const;

export function DeadLetterGroups() {
  const [group, setGroup] = useState("");
  return (
    <Page title="Dead letters" lead="Messages that a group could not consume, after all its retries.">
      <section class="card">
        <form class="table-tools" onSubmit={(event) => { event.preventDefault(); if (group.trim()) go(link("/dead-letters", group.trim())); }}>
          <Field label="Consumer group" value={group} onValue={setGroup} input={{ name: "group", required: true, spellcheck: false }} />
          <button type="submit" class="primary">Show</button>
          <a class="button" href="#/topics?kind=dlq">Groups that have some</a>
        </form>
      </section>
    </Page>
  );
}

export function DeadLetters({ parameters }: { parameters: Parameters }) {
  const group = parameters["group"] ?? "";
  const { query } = useStore(route);
  const { readOnly } = useStore(session);
  const begin = query.get("begin") ?? String(Math.floor(Date.now() / DAY_MS - 7) * DAY_MS);
  const [from, setFrom] = useState(localTime(Number(begin)));
  const [chosen, setChosen] = useState<ReadonlyMap<string, MessageRow>>(new Map());
  const [to, setTo] = useState("group");
  const search = useSearch(`dead-letters/${encodeURIComponent(group)}`, { begin, limit: LIMIT });
  const action = useAction();
  const key = (row: MessageRow): string => `${row.brokerName}:${row.queueId}:${row.queueOffset}`;
  const toggle = (rows: readonly MessageRow[], isOn: boolean): void => {
    const next = new Map(chosen);
    for (const row of rows) {
      if (isOn && next.size < MOST) next.set(key(row), row);
      else if (!isOn) next.delete(key(row));
    }
    setChosen(next);
  };
  const columns: readonly Column<MessageRow>[] = [
    { key: "choose", title: "Chosen", isTitleHidden: true, width: "2rem", cell: (row) => <input type="checkbox" aria-label={`Choose ${key(row)}`} checked={chosen.has(key(row))} onChange={(event) => toggle([row], event.currentTarget.checked)} /> },
    ...MESSAGE_COLUMNS,
    { key: "original", title: "Original topic", cell: (row) => (row.originalTopic ? <a href={topicLink(row.originalTopic)}>{row.originalTopic}</a> : "–"), isWide: true },
  ];
  const resend = (): void =>
    action.start({
      title: `Send ${count(chosen.size)} dead letters again`,
      verb: "Send again",
      action: {
        name: "resendDeadLetters",
        parameters: { group, to, messages: [...chosen.values()].map((row) => ({ brokerName: row.brokerName, queueId: row.queueId, queueOffset: row.queueOffset })) },
      },
      onDone: (done) => done.done && setChosen(new Map()),
    });
  return (
    <Page title={`Dead letters of ${group}`} lead={<><a href={groupOfConsumersLink(group)}>{group}</a> could not consume these messages, after all its retries.</>}>
      <section class="card">
        <div class="table-tools">
          <Field label="Stored from" value={from} onValue={(text) => { setFrom(text); const ms = timeOf(text); if (ms !== null) setQuery({ begin: String(ms) }); }} input={{ type: "datetime-local", step: 1 }} />
          <Select label="Send again" value={to} options={TO} onValue={setTo} />
          <button type="button" disabled={!search.rows.length} onClick={() => toggle(search.rows, true)}>Choose all</button>
          <button type="button" disabled={!chosen.size} onClick={() => setChosen(new Map())}>Choose none</button>
          <button type="button" class="primary" disabled={readOnly || !chosen.size} onClick={resend}>Send {count(chosen.size)} again …</button>
        </div>
        {chosen.size >= MOST && <Note tone="info">At most {MOST} at a time.</Note>}
        <Results search={search} caption="Dead letters" columns={columns} />
      </section>
      {action.dialog}
    </Page>
  );
}
