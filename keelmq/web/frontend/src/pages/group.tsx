/** One group: who is the master and why, how far each replica is, and what an operator can do. */

import type { GroupStatus } from "../api/types";
import { Card, Empty, KeyValue, Note, Page, Tabs, Time, VerdictBadge } from "../components/basic";
import { Problems } from "../components/problems";
import { InSync } from "../components/replicas";
import { WithStatus } from "../components/with_status";
import { groupLink } from "../lib/cluster";
import { bytes, count, duration } from "../lib/format";
import { useStore } from "../lib/store";
import { route, type Parameters } from "../router";
import { ElectButton, ForgetButton } from "./group_actions";
import { GroupElections } from "./group_elections";
import { GroupEpochs } from "./group_epochs";
import { GroupHistory } from "./group_history";
import { Replicas } from "./group_replicas";
import { GroupSettings } from "./group_settings";

const TABS = [
  { key: "", title: "Replicas" },
  { key: "charts", title: "Charts" },
  { key: "elections", title: "Elections" },
  { key: "epochs", title: "Epochs" },
  { key: "settings", title: "Settings" },
];

export function Group({ parameters }: { parameters: Parameters }) {
  const { cluster = "", name = "" } = parameters;
  return (
    <WithStatus title={name}>
      {(status) => {
        const group = status.groups.find((each) => each.cluster === cluster && each.brokerName === name);
        return group ? <Known group={group} /> : <Gone cluster={cluster} name={name} />;
      }}
    </WithStatus>
  );
}

function Gone({ cluster, name }: { cluster: string; name: string }) {
  return (
    <Page title={name}>
      <Note tone="warning">
        No server knows a group {name} in {cluster}. It may have been forgotten, or its brokers are not registered yet. <a href="#/groups">All groups</a>
      </Note>
    </Page>
  );
}

function Known({ group }: { group: GroupStatus }) {
  const { query } = useStore(route);
  const tab = query.get("tab") ?? "";
  return (
    <Page
      title={group.brokerName}
      badge={<VerdictBadge verdict={group.verdict} />}
      lead={<>Broker group of {group.cluster}</>}
      actions={
        group.hasControllers && (
          <>
            <ElectButton group={group} />
            <ForgetButton group={group} />
          </>
        )
      }
    >
      <Tabs label="Parts of the group" tabs={TABS} current={tab} href={(key) => groupLink(group, key)} />
      {tab === "" && <Now group={group} />}
      {tab === "charts" && <GroupHistory group={group} />}
      {tab === "elections" && <GroupElections group={group} />}
      {tab === "epochs" && <GroupEpochs group={group} />}
      {tab === "settings" && <GroupSettings group={group} />}
    </Page>
  );
}

function Now({ group }: { group: GroupStatus }) {
  return (
    <>
      {group.problems.length > 0 && (
        <Card title="Problems"><Problems problems={group.problems} groups={[]} /></Card>
      )}
      {group.disagreements.map((text) => <Note key={text} tone="warning">{text}</Note>)}
      <Card title="State">
        <KeyValue
          items={[
            ["Master", group.masterId === null ? <span class="bad-text">✕ none</span> : `broker ${group.masterId}`],
            ["Address", group.masterAddress || "–"],
            ["Epoch of the master", count(group.masterEpoch)],
            ["In sync", <InSync key="s" group={group} />],
            ["SyncStateSet", `${group.syncStateSet.join(", ") || "–"}${group.syncStateSetEpoch === null ? "" : ` (epoch ${group.syncStateSetEpoch})`}`],
            ["End of the log", bytes(group.maxOffset)],
            ["Not confirmed yet", unconfirmed(group)],
            ["Decided by", group.hasControllers ? "controllers" : "a fixed master"],
          ]}
        />
      </Card>
      <Card title="Replicas"><Replicas group={group} /></Card>
      <LastElection group={group} />
    </>
  );
}

function unconfirmed(group: GroupStatus): string {
  return group.maxOffset === null || group.confirmOffset === null ? "–" : bytes(Math.max(group.maxOffset - group.confirmOffset, 0));
}

function LastElection({ group }: { group: GroupStatus }) {
  const election = group.lastElection;
  if (!group.hasControllers) return null;
  return (
    <Card title="Last election" aside={<a href={groupLink(group, "elections")}>All elections</a>}>
      {election === null ? (
        <Empty>None is recorded.</Empty>
      ) : (
        <KeyValue
          items={[
            ["When", <Time key="t" ms={election.timeMs} />],
            ["Result", election.brokerId === -1 ? "nobody could be elected" : `broker ${election.brokerId}`],
            ["Before", election.before === null ? "–" : `broker ${election.before}`],
            ["Reason", election.reason || "–"],
            ["Without a master", duration(election.withoutMasterMs)],
            ["Epoch", count(election.masterEpoch)],
          ]}
        />
      )}
    </Card>
  );
}
