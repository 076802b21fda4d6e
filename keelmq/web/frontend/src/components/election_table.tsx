/** Past elections: when, from whom to whom, why, and how long the group had no master. */

import type { PastElection } from "../api/types";
import { groupLink } from "../lib/cluster";
import { count, duration } from "../lib/format";
import { Badge, Time } from "./basic";
import { Table, type Column } from "./table";

/** From the last heartbeat of the lost master to the election; null: not known, or nobody was lost. */
export function withoutMaster(election: PastElection): number | null {
  if (election.newMasterBrokerId == null || election.lastHeartbeatTs == null) return null;
  return Math.max(election.ts - election.lastHeartbeatTs, 0);
}

const COLUMNS: readonly Column<PastElection>[] = [
  { key: "time", title: "When", cell: (each) => <Time ms={each.ts} />, sort: (each) => each.ts, width: "11rem" },
  {
    key: "group",
    title: "Group",
    cell: (each) => <a href={groupLink({ cluster: each.clusterName, brokerName: each.brokerName }, "elections")}>{each.brokerName}</a>,
    sort: (each) => each.brokerName,
  },
  {
    key: "master",
    title: "Master",
    cell: (each) => (
      <>
        {each.oldMasterBrokerId ?? "–"} → {each.newMasterBrokerId ?? <Badge tone="failed">nobody</Badge>}{" "}
        {each.unclean && <Badge tone="warning" title="The new master was not in the SyncStateSet: acknowledged messages may be lost">unclean</Badge>}
      </>
    ),
    sort: (each) => each.newMasterBrokerId,
  },
  { key: "epoch", title: "Epoch", cell: (each) => count(each.masterEpoch), sort: (each) => each.masterEpoch, isNumber: true },
  {
    key: "without",
    title: "Without a master",
    cell: (each) => duration(withoutMaster(each)),
    sort: withoutMaster,
    isNumber: true,
    isWide: true,
    hint: "from the last heartbeat of the lost master to the election",
  },
  { key: "reason", title: "Reason", cell: (each) => each.reason, sort: (each) => each.reason },
];

export function ElectionTable({ elections, isOneGroup = false }: { elections: readonly PastElection[]; isOneGroup?: boolean }) {
  return (
    <Table
      caption="Past elections"
      rows={elections}
      columns={isOneGroup ? COLUMNS.filter((each) => each.key !== "group") : COLUMNS}
      rowKey={(each) => `${each.eventId}`}
      {...(isOneGroup ? {} : { text: (each: PastElection) => `${each.brokerName} ${each.clusterName} ${each.reason}`, filterLabel: "Group or reason" })}
      sort="-time"
      name="e"
      empty="No election is recorded."
    />
  );
}
