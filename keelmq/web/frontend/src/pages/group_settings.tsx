/** Settings in force: first where replicas differ, then all of one replica; each can be changed. */

import { useMemo, useState } from "preact/hooks";
import { session } from "../api/client";
import { useGet } from "../api/fetched";
import type { GroupStatus, SettingDifference, SettingsView } from "../api/types";
import { ActionDialog } from "../components/action";
import { Age, Badge, Card, ErrorNote, Field, Loading, Note, Select } from "../components/basic";
import { Table, type Column } from "../components/table";
import { plural } from "../lib/format";
import { useStore } from "../lib/store";
import { route, setQuery } from "../router";
import { WithDetail } from "./group_detail";

interface Setting {
  key: string;
  value: string;
}

export function GroupSettings({ group }: { group: GroupStatus }) {
  const [edited, setEdited] = useState<Setting | null>(null);
  return (
    <>
      <WithDetail group={group}>{(detail) => <Differences group={group} differences={detail.differences} onEdit={setEdited} />}</WithDetail>
      <OfReplica group={group} onEdit={setEdited} />
      {edited && <SettingDialog group={group} setting={edited} onClose={() => setEdited(null)} />}
    </>
  );
}

function Differences(props: { group: GroupStatus; differences: readonly SettingDifference[]; onEdit: (setting: Setting) => void }) {
  const { readOnly } = useStore(session);
  const { differences, group } = props;
  const wrong = differences.filter((each) => !each.isOwn).length;
  const columns: Column<SettingDifference>[] = [
    { key: "key", title: "Setting", cell: (each) => <code>{each.key}</code>, sort: (each) => each.key },
    { key: "kind", title: "Kind", cell: (each) => (each.isOwn ? <span class="dim">its own</span> : <Badge tone="warning">differs</Badge>), sort: (each) => Number(each.isOwn), width: "6rem" },
    ...group.replicas.map((replica): Column<SettingDifference> => ({
      key: String(replica.brokerId),
      title: `${replica.brokerId}${replica.brokerId === group.masterId ? " (master)" : ""}`,
      cell: (each) => <code class="value">{each.values[replica.address] ?? "not set"}</code>,
    })),
    {
      key: "edit",
      title: "Action",
      isWide: true,
      cell: (each) => !each.isOwn && <EditButton name={each.key} isOff={readOnly} onClick={() => props.onEdit({ key: each.key, value: masterValue(each, group) })} />,
    },
  ];
  return (
    <Card title="Differences between the replicas" aside={plural(differences.length, "setting")}>
      <Note tone={wrong ? "warning" : "ok"}>
        {wrong
          ? `${plural(wrong, "setting")} should be the same everywhere: after a fail-over another replica's value applies.`
          : "Replicas differ only where each has a value of its own."}
      </Note>
      <Table caption="Settings that differ" rows={differences} columns={columns} rowKey={(each) => each.key} name="d" empty="No setting differs." />
    </Card>
  );
}

function masterValue(difference: SettingDifference, group: GroupStatus): string {
  return difference.values[group.masterAddress] ?? Object.values(difference.values).find((value) => value !== null) ?? "";
}

function EditButton({ name, isOff, onClick }: { name: string; isOff: boolean; onClick: () => void }) {
  return <button type="button" disabled={isOff} aria-label={`Change ${name}`} onClick={onClick}>Change …</button>;
}

function OfReplica({ group, onEdit }: { group: GroupStatus; onEdit: (setting: Setting) => void }) {
  const { query } = useStore(route);
  const { readOnly } = useStore(session);
  const chosen = group.replicas.find((each) => String(each.brokerId) === query.get("replica"));
  const replica = chosen ?? group.replicas.find((each) => each.brokerId === group.masterId) ?? group.replicas[0];
  const { value, error, isLoading, takenAt, again } = useGet<SettingsView>(replica ? "settings" : null, { server: replica?.address });
  const rows = useMemo(() => Object.entries(value?.settings ?? {}).map(([key, text]) => ({ key, value: text })), [value]);
  const columns = useMemo<Column<Setting>[]>(
    () => [
      { key: "key", title: "Setting", cell: (each) => <code>{each.key}</code>, sort: (each) => each.key, width: "40%" },
      { key: "value", title: "Value", cell: (each) => <code class="value">{each.value || "empty"}</code>, sort: (each) => each.value },
      { key: "edit", title: "Action", cell: (each) => <EditButton name={each.key} isOff={readOnly} onClick={() => onEdit(each)} />, width: "7rem" },
    ],
    [readOnly],
  );
  if (!replica) return null;
  return (
    <Card
      title="All settings"
      aside={
        <span class="chart-tools">
          <Age at={takenAt} lateAfterMs={600_000} />
          <Select
            label="Replica"
            value={String(replica.brokerId)}
            options={group.replicas.map((each) => [String(each.brokerId), `${each.brokerId} · ${each.address}`] as const)}
            onValue={(id) => setQuery({ replica: id })}
          />
        </span>
      }
    >
      <ErrorNote text={error} again={again} />
      {isLoading && <Loading what="the settings" />}
      {value && <Table caption={`Settings of replica ${replica.brokerId}`} rows={rows} columns={columns} rowKey={(each) => each.key} text={(each) => `${each.key} ${each.value}`} filterLabel="Setting or value" sort="key" name="s" />}
    </Card>
  );
}

function SettingDialog({ group, setting, onClose }: { group: GroupStatus; setting: Setting; onClose: () => void }) {
  const [value, setValue] = useState(setting.value);
  const [target, setTarget] = useState("");
  const brokerId = target === "" ? null : Number(target);
  const targets: [string, string][] = [["", `all of ${group.brokerName}`], ...group.replicas.map((each): [string, string] => [String(each.brokerId), `only replica ${each.brokerId}`])];
  return (
    <ActionDialog
      title={`Change ${setting.key}`}
      verb="Change"
      action={{ name: "updateBrokerConfig", parameters: { cluster: group.cluster, brokerName: group.brokerName, brokerId, key: setting.key, value } }}
      onClose={onClose}
      fields={
        <>
          <Field label="New value" value={value} onValue={setValue} input={{ name: "value", spellcheck: false, autocomplete: "off" }} />
          <Select label="Where" value={target} options={targets} onValue={setTarget} />
        </>
      }
    />
  );
}
