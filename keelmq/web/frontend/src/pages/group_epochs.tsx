/** The epoch files of all replicas side by side, and their HA connections. */

import type { GroupStatus, HaConnection, ReplicaDetail } from "../api/types";
import { Badge, Card, Empty, KeyValue, Note, Time } from "../components/basic";
import { Table, type Column } from "../components/table";
import { epochRows, type EpochRow } from "../lib/epochs";
import { bytes, count, duration, plural } from "../lib/format";
import { WithDetail } from "./group_detail";

export function GroupEpochs({ group }: { group: GroupStatus }) {
  return (
    <WithDetail group={group}>
      {(detail) => (
        <>
          <Card title="Epochs"><Epochs replicas={detail.replicas} masterId={group.masterId} /></Card>
          <Card title="HA connections"><Links replicas={detail.replicas} /></Card>
        </>
      )}
    </WithDetail>
  );
}

function Epochs({ replicas, masterId }: { replicas: readonly ReplicaDetail[]; masterId: number | null }) {
  const rows = epochRows(replicas, masterId);
  const different = rows.filter((row) => row.differs.includes(true)).length;
  const columns: Column<EpochRow>[] = [
    { key: "epoch", title: "Epoch", cell: (row) => count(row.epoch), sort: (row) => row.epoch, isNumber: true, width: "5rem" },
    ...replicas.map((replica, at): Column<EpochRow> => ({
      key: String(replica.brokerId),
      title: `${replica.brokerId}${replica.brokerId === masterId ? " (master)" : ""}`,
      cell: (row) => <Entry row={row} at={at} isOpen={replica.epochs?.at(-1) === row.entries[at]} />,
    })),
  ];
  return (
    <>
      {replicas.filter((each) => each.epochs === null).map((each) => <Note key={each.brokerId} tone="warning">Replica {each.brokerId}: {each.problem || "no answer"}</Note>)}
      {rows.length > 0 && (
        <Note tone={different ? "failed" : "ok"}>
          {different
            ? `Replicas differ from the master in ${plural(different, "epoch")}: a replica that differs truncates its log to the last common byte before it is in sync again.`
            : "Where the replicas have the same epochs, these begin and end at the same bytes."}
        </Note>
      )}
      <Table caption="Epochs of all replicas" rows={rows} columns={columns} rowKey={(row) => String(row.epoch)} sort="-epoch" name="p" empty="No replica has an epoch file." />
    </>
  );
}

function Entry({ row, at, isOpen }: { row: EpochRow; at: number; isOpen: boolean }) {
  const entry = row.entries[at];
  if (entry === undefined) return <span class="dim">not known</span>;
  if (entry === null) return <span class={row.differs[at] ? "differs" : "dim"}>{row.differs[at] ? "≠ missing" : "–"}</span>;
  return (
    <span class={row.differs[at] ? "differs" : undefined}>
      {row.differs[at] ? "≠ " : ""}
      {count(entry.startOffset)} – {isOpen ? "now" : count(entry.endOffset)}
    </span>
  );
}

const LINKS: readonly Column<HaConnection>[] = [
  { key: "id", title: "Slave", cell: (each) => each.brokerId ?? "–", sort: (each) => each.brokerId },
  { key: "addr", title: "Address", cell: (each) => <code>{each.addr}</code>, sort: (each) => each.addr, isWide: true },
  { key: "sync", title: "State", cell: (each) => <Badge tone={each.inSync ? "ok" : "warning"}>{each.inSync ? "in sync" : "behind"}</Badge>, sort: (each) => Number(each.inSync) },
  { key: "ack", title: "Acknowledged", cell: (each) => count(each.slaveAckOffset), sort: (each) => each.slaveAckOffset, isNumber: true, isWide: true },
  { key: "diff", title: "Behind", cell: (each) => bytes(each.diff), sort: (each) => each.diff, isNumber: true },
  { key: "lag", title: "For", cell: (each) => duration(each.lagMillis), sort: (each) => each.lagMillis, isNumber: true },
  { key: "rate", title: "Transfer a second", cell: (each) => bytes(each.transferredByteInSecond), sort: (each) => each.transferredByteInSecond, isNumber: true },
  { key: "eta", title: "Caught up in", cell: (each) => duration(each.etaMillis), sort: (each) => each.etaMillis, isNumber: true, isWide: true },
];

function Links({ replicas }: { replicas: readonly ReplicaDetail[] }) {
  const master = replicas.find((each) => each.ha?.master);
  const faults = replicas.filter((each) => each.ha?.fault);
  const slaves = replicas.filter((each) => each.ha && !each.ha.master);
  return (
    <>
      {faults.map((each) => <Note key={each.brokerId} tone="failed">Replica {each.brokerId} copies nothing: {each.ha?.fault}</Note>)}
      {master?.ha ? (
        <Table caption="Slaves of the master" rows={master.ha.haConnectionInfo} columns={LINKS} rowKey={(each) => each.addr} name="h" empty="No slave is connected to the master." />
      ) : (
        <Empty>No replica says that it is the master.</Empty>
      )}
      {slaves.map((each) => (
        <div key={each.brokerId} class="slave">
          <h3>Slave {each.brokerId}</h3>
          <KeyValue
            items={[
              ["Connected to", each.ha?.haClientRuntimeInfo.masterAddr || "–"],
              ["Active", each.ha?.haClientRuntimeInfo.activated ? "yes" : "no"],
              ["End of its log", count(each.ha?.haClientRuntimeInfo.maxOffset)],
              ["Transfer a second", bytes(each.ha?.haClientRuntimeInfo.transferredByteInSecond)],
              ["Last read", <Time key="r" ms={each.ha?.haClientRuntimeInfo.lastReadTimestamp} />],
              ["Caught up in", duration(each.ha?.haClientRuntimeInfo.etaMillis)],
            ]}
          />
        </div>
      ))}
    </>
  );
}
