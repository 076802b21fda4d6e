/** All groups in a table, the worst first. A thousand groups are a usual size. */

import type { GroupStatus } from "../api/types";
import { Page, Time, VerdictBadge } from "../components/basic";
import { InSync } from "../components/replicas";
import { Table, type Column } from "../components/table";
import { WithStatus } from "../components/with_status";
import { groupLink, inSync, messagesIn, messagesOut, rank, worstLag } from "../lib/cluster";
import { bytes, count, rate } from "../lib/format";
import { setQuery } from "../router";
import { route } from "../router";
import { useStore } from "../lib/store";

export function Groups() {
  return (
    <WithStatus title="Groups">
      {(status) => (
        <Page title="Groups" lead="Broker groups: one master, its slaves, and who of them has every acknowledged message.">
          <section class="card"><GroupTable groups={status.groups} /></section>
        </Page>
      )}
    </WithStatus>
  );
}

const COLUMNS: readonly Column<GroupStatus>[] = [
  { key: "state", title: "State", cell: (group) => <VerdictBadge verdict={group.verdict} />, sort: (group) => rank(group.verdict), width: "7rem" },
  { key: "name", title: "Group", cell: (group) => <a href={groupLink(group)}>{group.brokerName}</a>, sort: (group) => group.brokerName },
  { key: "cluster", title: "Cluster", cell: (group) => group.cluster, sort: (group) => group.cluster, isWide: true },
  {
    key: "master",
    title: "Master",
    cell: (group) => (group.masterId === null ? <span class="bad-text">✕ none</span> : <>{group.masterId} <span class="dim wide">{group.masterAddress}</span></>),
    sort: (group) => group.masterId,
  },
  { key: "epoch", title: "Epoch", cell: (group) => count(group.masterEpoch), sort: (group) => group.masterEpoch, isNumber: true, isWide: true },
  { key: "sync", title: "In sync", cell: (group) => <InSync group={group} />, sort: (group) => inSync(group) - (group.minInSync ?? 0) },
  {
    key: "lag",
    title: "Largest lag",
    cell: (group) => bytes(worstLag(group, "lagBytes")),
    sort: (group) => worstLag(group, "lagBytes"),
    isNumber: true,
  },
  { key: "in", title: "In/s", cell: (group) => rate(messagesIn(group)), sort: messagesIn, isNumber: true, isWide: true },
  { key: "out", title: "Out/s", cell: (group) => rate(messagesOut(group)), sort: messagesOut, isNumber: true, isWide: true },
  {
    key: "election",
    title: "Last election",
    cell: (group) => group.lastElection && <span title={group.lastElection.reason}><Time ms={group.lastElection.timeMs} /></span>,
    sort: (group) => group.lastElection?.timeMs,
    isWide: true,
    isNumber: true,
  },
];

export function GroupTable({ groups }: { groups: readonly GroupStatus[] }) {
  const { query } = useStore(route);
  const only = query.get("only") === "bad";
  const shown = only ? groups.filter((group) => group.verdict !== "ok") : groups;
  const bad = groups.filter((group) => group.verdict !== "ok").length;
  return (
    <Table
      caption="Table of groups"
      rows={shown}
      columns={COLUMNS}
      rowKey={groupLink}
      text={(group) => `${group.brokerName} ${group.cluster} ${group.verdict} ${group.replicas.map((each) => each.address).join(" ")}`}
      filterLabel="Name, cluster or address"
      sort="state"
      name="g"
      tools={
        <label class="check">
          <input type="checkbox" checked={only} onChange={() => setQuery({ only: only ? undefined : "bad" })} /> problems only ({count(bad)})
        </label>
      }
    />
  );
}
