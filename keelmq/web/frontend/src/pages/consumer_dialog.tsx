/** Creates a consumer group, or changes its settings. */

import { useState } from "preact/hooks";
import { live } from "../api/live";
import { Field, Select } from "../components/basic";
import { FormThenAction } from "../components/form";
import { useStore } from "../lib/store";
import type { GroupView } from "./data_types";

export interface GroupSettings {
  cluster: string;
  group: string;
  consumeEnable: boolean;
  consumeBroadcastEnable: boolean;
  consumeMessageOrderly: boolean;
  retryQueueNums: number;
  retryMaxTimes: number;
}

const SWITCHES = [
  ["consumeEnable", "members get messages"],
  ["consumeBroadcastEnable", "members may broadcast: each gets every message"],
  ["consumeMessageOrderly", "ordered: one member consumes a queue, in its order"],
] as const;

/** The settings at the first broker that told them; null: none did. */
export function settingsOf(view: GroupView): GroupSettings | null {
  const first = view.brokers[0];
  if (!first) return null;
  const { settings } = first;
  const isOn = (name: string, or: boolean): boolean => (typeof settings[name] === "boolean" ? settings[name] : or);
  const number = (name: string, or: number): number => (typeof settings[name] === "number" ? settings[name] : or);
  return {
    cluster: first.cluster,
    group: view.name,
    consumeEnable: isOn("consumeEnable", true),
    consumeBroadcastEnable: isOn("consumeBroadcastEnable", true),
    consumeMessageOrderly: isOn("consumeMessageOrderly", false),
    retryQueueNums: number("retryQueueNums", 1),
    retryMaxTimes: number("retryMaxTimes", 16),
  };
}

export function GroupDialog({ before, onClose }: { before?: GroupSettings; onClose: () => void }) {
  const { status } = useStore(live);
  const clusters = [...new Set((status?.groups ?? []).map((group) => group.cluster))].sort();
  const [wanted, setWanted] = useState<GroupSettings>(
    before ?? { cluster: clusters[0] ?? "", group: "", consumeEnable: true, consumeBroadcastEnable: true, consumeMessageOrderly: false, retryQueueNums: 1, retryMaxTimes: 16 },
  );
  const [isReady, setReady] = useState(false);
  const set = (change: Partial<GroupSettings>): void => {
    setWanted({ ...wanted, ...change });
    setReady(false);
  };
  const fields = (
    <>
      <Select label="Cluster" value={wanted.cluster} options={clusters.map((each) => [each, each] as const)} onValue={(cluster) => set({ cluster })} />
      <Field label="Consumer group" value={wanted.group} onValue={(group) => set({ group: group.trim() })} input={{ disabled: before !== undefined, spellcheck: false, name: "group" }} />
      <Field label="Retries before a message is a dead letter" value={String(wanted.retryMaxTimes)} onValue={(text) => set({ retryMaxTimes: Number(text) })} input={{ type: "number", min: -1, name: "retryMaxTimes" }} />
      <Field label="Queues of the retry topic" hint="0: no retries" value={String(wanted.retryQueueNums)} onValue={(text) => set({ retryQueueNums: Number(text) })} input={{ type: "number", min: 0, name: "retryQueueNums" }} />
      {SWITCHES.map(([name, label]) => (
        <label key={name} class="check"><input type="checkbox" checked={wanted[name]} onChange={() => set({ [name]: !wanted[name] })} /> {label}</label>
      ))}
    </>
  );
  const title = before ? `Change group ${before.group}` : "Create a consumer group";
  return <FormThenAction title={title} verb={before ? "Change" : "Create"} name="updateSubGroup" parameters={{ ...wanted }} fields={fields} isReady={isReady} setReady={setReady} isComplete={wanted.group !== "" && wanted.cluster !== ""} onClose={onClose} />;
}
