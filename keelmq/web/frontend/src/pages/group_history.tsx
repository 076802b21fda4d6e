/** Charts of one group: what the console has seen since it was first used. Elections are marked. */

import { useMemo } from "preact/hooks";
import { clockAheadMs } from "../api/client";
import { useGet } from "../api/fetched";
import type { GroupStatus, HistoryView } from "../api/types";
import { Age, Card, Empty, ErrorNote, Loading, Select } from "../components/basic";
import { Chart, type Mark, type Series } from "../components/chart";
import { bytes, count, duration, rate } from "../lib/format";
import { changesOf, perSecond } from "../lib/history";
import { useStore } from "../lib/store";
import { route, setQuery } from "../router";

const SPANS = [["900000", "15 minutes"], ["3600000", "1 hour"], ["36000000", "10 hours"]] as const;
const EVERY_MS = 10_000;

export function GroupHistory({ group }: { group: GroupStatus }) {
  const { query } = useStore(route);
  const span = query.get("span") ?? SPANS[0][0];
  const name = `${group.cluster}/${group.brokerName}`;
  const { value, error, isLoading, takenAt, again } = useGet<HistoryView>("history", { group: name, step: stepOf(span) }, EVERY_MS, () => ({
    from: Date.now() - (clockAheadMs ?? 0) - Number(span),
  }));
  return (
    <Card
      title="Charts"
      aside={
        <span class="chart-tools">
          <Age at={takenAt} />
          <Select label="Time" value={span} options={SPANS} onValue={(chosen) => setQuery({ span: chosen })} />
        </span>
      }
    >
      <ErrorNote text={error} again={again} />
      {isLoading && <Loading what="the history" />}
      {value && (value.timesMs.length < 2 ? <Empty>Not enough has been seen yet; come back in some seconds.</Empty> : <Charts view={value} />)}
    </Card>
  );
}

/** As fine as there is, and another one for each span, so that a new span is asked for at once. */
function stepOf(span: string): number {
  return Number(span) > 3_600_000 ? 60_000 : Number(span) > 900_000 ? 10_000 : 0;
}

function Charts({ view }: { view: HistoryView }) {
  const { timesMs, values } = view;
  const marks = useMemo<Mark[]>(() => changesOf(timesMs, values["masterEpoch"] ?? []).map((timeMs) => ({ timeMs, label: "new master" })), [view]);
  const one = (label: string, name: string): Series => ({ label, values: values[name] ?? timesMs.map(() => null) });
  const charts = useMemo(
    () => [
      { title: "Messages a second", format: rate, series: [one("in, at the master", "messagesInPerS"), one("out, all replicas", "messagesOutPerS")] },
      { title: "Largest lag of a replica", format: bytes, isBytes: true, series: [one("behind the master", "lagBytes")] },
      { title: "Largest lag in time", format: duration, series: [one("lacks the oldest byte for", "lagMs")] },
      { title: "Growth of the log a second", format: bytes, isBytes: true, series: [{ label: "end of the log", values: perSecond(timesMs, values["maxOffset"] ?? []) }, { label: "confirmed", values: perSecond(timesMs, values["confirmOffset"] ?? []) }] },
      { title: "Replicas", format: count, series: [one("in sync", "inSync"), one("alive", "replicasAlive")] },
    ],
    [view],
  );
  return (
    <div class="charts">
      {charts.map((each) => <Chart key={each.title} {...each} timesMs={timesMs} marks={marks} group="group" />)}
    </div>
  );
}
