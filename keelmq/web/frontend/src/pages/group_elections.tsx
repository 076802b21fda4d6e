/** Whom the controllers would elect now and why, and past elections of the group. */

import { clockAheadMs } from "../api/client";
import { useGet } from "../api/fetched";
import type { ElectionCandidate, ElectionExplanation, GroupStatus, HistoryView, PastElection } from "../api/types";
import { Badge, Card, Empty, Note, Time } from "../components/basic";
import { ElectionTable } from "../components/election_table";
import { Table, type Column } from "../components/table";
import { bytes, count } from "../lib/format";
import { timeline } from "../lib/timeline";
import { WithDetail } from "./group_detail";

const SPAN_MS = 3_600_000;
const EVENTS_MAX = 30;
/** What the controllers decide; anything else is shown as they say it. */
const VERDICTS: Readonly<Record<string, string>> = {
  keep: "The master stays.",
  elected: "Another replica becomes the master.",
  none: "No replica may win: the group stays without a master.",
  wait: "No replica may win yet: the controllers wait for heartbeats.",
};

export function GroupElections({ group }: { group: GroupStatus }) {
  if (!group.hasControllers) return <Empty>This group has no controllers: its master is configured, and nobody is elected.</Empty>;
  return (
    <WithDetail group={group}>
      {(detail) => (
        <>
          {detail.nextElection && (
            <Card title="If the controllers elected now" aside="a dry run; nothing changes"><Explanation explained={detail.nextElection} /></Card>
          )}
          <Timeline group={group} elections={detail.elections ?? []} />
          <Card title="Past elections">
            {detail.elections === null ? <Empty>The controllers keep none.</Empty> : <ElectionTable elections={detail.elections} isOneGroup />}
          </Card>
        </>
      )}
    </WithDetail>
  );
}

/** Elections as the controllers recorded them; the rest as this console saw it, in steps of its history. */
function Timeline({ group, elections }: { group: GroupStatus; elections: readonly PastElection[] }) {
  const { value } = useGet<HistoryView>("history", { group: `${group.cluster}/${group.brokerName}` }, 10_000, () => ({
    from: Date.now() - (clockAheadMs ?? 0) - SPAN_MS,
  }));
  const events = timeline(elections, value);
  return (
    <Card title="Timeline" aside="elections, and what this console saw in the last hour">
      {!events.length && <Empty>Nothing has happened.</Empty>}
      <ol class="timeline">
        {events.slice(0, EVENTS_MAX).map((event) => (
          <li key={`${event.timeMs} ${event.text}`}>
            <Time ms={event.timeMs} />
            <Badge tone={event.tone}>{event.kind}</Badge>
            <span>{event.text}</span>
          </li>
        ))}
      </ol>
    </Card>
  );
}

const COLUMNS: readonly Column<ElectionCandidate>[] = [
  { key: "id", title: "Replica", cell: (each) => <>{each.brokerId} {each.wins && <Badge tone="info">wins</Badge>}</>, sort: (each) => each.brokerId },
  { key: "why", title: "Why", cell: (each) => each.why },
  { key: "alive", title: "Alive", cell: (each) => (each.alive ? "yes" : <span class="bad-text">✕ no</span>), sort: (each) => Number(each.alive) },
  { key: "sync", title: "In sync", cell: (each) => (each.inSync ? "yes" : "no"), sort: (each) => Number(each.inSync) },
  { key: "epoch", title: "Epoch", cell: (each) => count(each.epoch), sort: (each) => each.epoch, isNumber: true, isWide: true },
  { key: "end", title: "End of log", cell: (each) => count(each.maxOffset), sort: (each) => each.maxOffset, isNumber: true, isWide: true },
  { key: "behind", title: "Behind", cell: (each) => bytes(each.behindBytes), sort: (each) => each.behindBytes, isNumber: true },
];

export function Explanation({ explained }: { explained: ElectionExplanation }) {
  const tone = explained.unclean ? "warning" : explained.verdict === "none" ? "failed" : "info";
  return (
    <div class="explanation">
      <Note tone={tone}>
        {VERDICTS[explained.verdict] ?? explained.verdict}
        {explained.remark && explained.remark !== explained.verdict && <small class="block">{explained.remark}</small>}
        {explained.unclean && <small class="block">Unclean: acknowledged messages may be lost.</small>}
      </Note>
      <Table caption="Candidates" rows={explained.candidates} columns={COLUMNS} rowKey={(each) => String(each.brokerId)} sort="id" name="c" empty="There is no candidate." />
    </div>
  );
}
