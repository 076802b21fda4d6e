/** What is asked about one group when its page is open; again when the picture of the group changes. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { useGet } from "../api/fetched";
import type { GroupDetail, GroupStatus } from "../api/types";
import { Age, ErrorNote, Loading, Note } from "../components/basic";

const EVERY_MS = 5_000;

export function WithDetail({ group, children }: { group: GroupStatus; children: (detail: GroupDetail) => ComponentChildren }) {
  const path = `groups/${encodeURIComponent(group.cluster)}/${encodeURIComponent(group.brokerName)}`;
  const { value, error, isLoading, takenAt, again } = useGet<GroupDetail>(path, {}, EVERY_MS);
  useEffect(again, [group.masterEpoch, group.masterId, group.syncStateSetEpoch]);
  return (
    <>
      <ErrorNote text={error} again={again} />
      {isLoading && <Loading what="the details of the group" />}
      {value?.problems.map((text) => <Note key={text} tone="warning">{text}</Note>)}
      {value && children(value)}
      {value && <p class="dim foot">Asked <Age at={takenAt} lateAfterMs={15_000} /></p>}
    </>
  );
}
