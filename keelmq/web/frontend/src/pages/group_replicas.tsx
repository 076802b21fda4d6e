/** The replicas of a group, one a row. */

import type { GroupStatus, ReplicaStatus } from "../api/types";
import { StateMark } from "../components/replicas";
import { Table, type Column } from "../components/table";
import { Time } from "../components/basic";
import { differs, stateOf } from "../lib/cluster";
import { bytes, count, duration, percent, rate } from "../lib/format";

export function Replicas({ group }: { group: GroupStatus }) {
  const epochsDiffer = differs(group.replicas.map((each) => each.epoch));
  const longest = Math.max(...group.replicas.map((each) => each.lagBytes ?? 0), 1);
  const columns: Column<ReplicaStatus>[] = [
    { key: "id", title: "Id", cell: (each) => each.brokerId, sort: (each) => each.brokerId, isNumber: true },
    { key: "state", title: "State", cell: (each) => <><StateMark state={stateOf(each, group)} />{each.problem && <small class="bad-text block">{each.problem}</small>}</> },
    { key: "address", title: "Address", cell: (each) => <code>{each.address}</code>, isWide: true },
    {
      key: "lag",
      title: "Lag",
      cell: (each) => <Lag replica={each} share={(each.lagBytes ?? 0) / longest} />,
      sort: (each) => each.lagBytes,
      isNumber: true,
    },
    { key: "end", title: "End of log", cell: (each) => count(each.maxOffset), sort: (each) => each.maxOffset, isNumber: true, isWide: true },
    { key: "confirm", title: "Confirmed", cell: (each) => count(each.confirmOffset), sort: (each) => each.confirmOffset, isNumber: true, isWide: true },
    {
      key: "epoch",
      title: "Epoch",
      cell: (each) => <>{epochsDiffer && each.epoch !== null && each.epoch !== group.masterEpoch ? "≠ " : ""}{count(each.epoch)}</>,
      sort: (each) => each.epoch,
      isNumber: true,
    },
    { key: "in", title: "In/s", cell: (each) => rate(each.messagesInPerS), isNumber: true, isWide: true },
    { key: "out", title: "Out/s", cell: (each) => rate(each.messagesOutPerS), isNumber: true, isWide: true },
    { key: "disk", title: "Disk", cell: (each) => <Disk share={each.diskUsed} />, sort: (each) => each.diskUsed, isNumber: true, isWide: true },
    ...(group.replicas.some((each) => each.grpcPort !== null) ? [GRPC] : []),
    { key: "started", title: "Started", cell: (each) => <Time ms={each.startedMs} />, sort: (each) => each.startedMs, isNumber: true, isWide: true },
    { key: "version", title: "Version", cell: (each) => each.version || "–", isWide: true },
  ];
  return <Table caption={`Replicas of ${group.brokerName}`} rows={group.replicas} columns={columns} rowKey={(each) => String(each.brokerId)} sort="id" name="r" empty="No replica is known." />;
}

const GRPC: Column<ReplicaStatus> = {
  key: "grpc",
  title: "gRPC clients",
  cell: (each) => count(each.grpcClients),
  sort: (each) => each.grpcClients,
  isNumber: true,
  isWide: true,
};

function Lag({ replica, share }: { replica: ReplicaStatus; share: number }) {
  if (replica.role === "master") return <span class="dim">–</span>;
  return (
    <span class="lag">
      {bytes(replica.lagBytes)}
      {replica.lagMs ? <small> {duration(replica.lagMs)}</small> : null}
      {replica.lagBytes ? <meter min={0} max={1} value={share} aria-label={`lag of replica ${replica.brokerId} against the largest`} /> : null}
    </span>
  );
}

function Disk({ share }: { share: number | null }) {
  return <span class={share !== null && share >= 0.8 ? "bad-text" : undefined}>{share !== null && share >= 0.8 ? "! " : ""}{percent(share)}</span>;
}
