/** The elections of all groups, the newest first. It is asked again when the picture shows a new one. */

import { useEffect } from "preact/hooks";
import { useGet } from "../api/fetched";
import { live } from "../api/live";
import type { PastElection } from "../api/types";
import { Age, Empty, ErrorNote, Loading, Page } from "../components/basic";
import { ElectionTable } from "../components/election_table";
import { useStore } from "../lib/store";

const EVERY_MS = 10_000;
const COUNT = 1_000;

export function Elections() {
  const { status } = useStore(live);
  const newest = status?.groups.reduce((last, group) => Math.max(last, group.lastElection?.eventId ?? 0), 0) ?? 0;
  const { value, error, isLoading, takenAt, again } = useGet<{ elections: PastElection[] }>("elections", { count: COUNT }, EVERY_MS);
  useEffect(again, [newest]);
  const isNone = status !== null && status.controllers.length === 0;
  return (
    <Page title="Elections" lead={<>Whom the controllers elected, and why. <Age at={takenAt} /></>}>
      <section class="card">
        {isNone ? <Empty>This cluster has no controllers, so there are no elections.</Empty> : <ErrorNote text={error} again={again} />}
        {isLoading && <Loading what="the elections" />}
        {value && <ElectionTable elections={value.elections} />}
      </section>
    </Page>
  );
}
