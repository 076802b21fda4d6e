/** The verdict first, then the problems with their next step, then the map of the cluster. */

import type { ClusterStatus, GroupStatus } from "../api/types";
import { Badge, Card, Empty, Page, Time } from "../components/basic";
import { Problems } from "../components/problems";
import { InSync, ReplicaStrip } from "../components/replicas";
import { WithStatus } from "../components/with_status";
import { groupLink, headline, inSync, messagesIn, messagesOut, rank, total, worstLag } from "../lib/cluster";
import { bytes, count, plural, rate } from "../lib/format";
import { sorted } from "../lib/rows";
import { GroupTable } from "./groups";
import { VerdictBadge } from "../components/basic";

const CARDS_MAX = 12;

export function Overview() {
  return <WithStatus title="Overview">{(status) => <Known status={status} />}</WithStatus>;
}

function Known({ status }: { status: ClusterStatus }) {
  const worstFirst = sorted(status.groups, (group) => rank(group.verdict), false);
  return (
    <Page title="Overview">
      <Verdict status={status} />
      {status.problems.length > 0 && (
        <Card title="Problems" aside={plural(status.problems.length, "problem")}>
          <Problems problems={status.problems} groups={status.groups} />
        </Card>
      )}
      <Tiles status={status} />
      <Servers status={status} />
      <Card title="Groups" aside={<a href="#/groups">All groups</a>}>
        {!status.groups.length && <Empty>No broker is registered. Start one with this name server in namesrvAddr.</Empty>}
        {status.groups.length > 0 && status.groups.length <= CARDS_MAX && (
          <div class="group-cards">{worstFirst.map((group) => <GroupCard key={groupLink(group)} group={group} />)}</div>
        )}
        {status.groups.length > CARDS_MAX && <GroupTable groups={status.groups} />}
      </Card>
    </Page>
  );
}

function Verdict({ status }: { status: ClusterStatus }) {
  const words = { ok: "The cluster is well", warning: "The cluster works; something needs attention", failed: "The cluster needs help now" };
  const signs = { ok: "✓", warning: "!", failed: "✕" };
  return (
    <div class={`verdict ${status.verdict}`}>
      <span class="big-sign" aria-hidden="true">{signs[status.verdict]}</span>
      <div>
        <b>{words[status.verdict]}</b>
        <p>{headline(status)}</p>
      </div>
    </div>
  );
}

function Tiles({ status }: { status: ClusterStatus }) {
  const { groups } = status;
  const masters = groups.filter((group) => group.masterId !== null).length;
  const replicas = total(groups.map((group) => group.replicas.length));
  const tiles: [string, string, string][] = [
    ["Masters", `${count(masters)} / ${count(groups.length)}`, "groups with a master"],
    ["In sync", `${count(total(groups.map(inSync)))} / ${count(replicas)}`, "replicas in their SyncStateSet"],
    ["Largest lag", bytes(groups.reduce<number | null>((worst, group) => largest(worst, worstLag(group, "lagBytes")), null)), "of a living replica"],
    ["Messages in", rate(total(groups.map(messagesIn))), "a second, all masters"],
    ["Messages out", rate(total(groups.map(messagesOut))), "a second, all replicas"],
  ];
  return (
    <dl class="tiles">
      {tiles.map(([name, value, hint]) => (
        <div class="tile" key={name}>
          <dt>{name}</dt>
          <dd>{value}<small>{hint}</small></dd>
        </div>
      ))}
    </dl>
  );
}

function largest(one: number | null, other: number | null): number | null {
  return one === null || other === null ? (one ?? other) : Math.max(one, other);
}

function Servers({ status }: { status: ClusterStatus }) {
  return (
    <div class="columns">
      <Card title="Name servers" aside={<a href="#/name-servers">Details</a>}>
        <ul class="servers-list">
          {status.nameServers.map((each) => (
            <li key={each.address}>
              <Badge tone={each.isUp ? "ok" : "failed"}>{each.isUp ? "up" : "silent"}</Badge>
              <code>{each.address}</code>
              <span class="dim">{each.isUp ? plural(each.brokers ?? 0, "broker") : each.problem}</span>
            </li>
          ))}
        </ul>
      </Card>
      <Card title="Controllers" aside={<a href="#/controllers">Details</a>}>
        {!status.controllers.length && <Empty>None: these groups have a fixed master.</Empty>}
        <ul class="servers-list">
          {status.controllers.map((each) => (
            <li key={each.address}>
              <Badge tone={each.role === "silent" ? "failed" : each.role === "leader" ? "info" : "ok"}>{each.role}</Badge>
              <code>{each.address}</code>
              <span class="dim">{each.role === "silent" ? each.problem : `${each.member}${each.term === null ? "" : `, term ${each.term}`}`}</span>
            </li>
          ))}
        </ul>
      </Card>
    </div>
  );
}

function GroupCard({ group }: { group: GroupStatus }) {
  const election = group.lastElection;
  return (
    <article class={`group-card edge-${group.verdict}`}>
      <header>
        <h3><a href={groupLink(group)}>{group.brokerName}</a> <small>{group.cluster}</small></h3>
        <VerdictBadge verdict={group.verdict} />
      </header>
      <ReplicaStrip group={group} />
      <dl>
        <div><dt>Master</dt><dd>{group.masterId === null ? <span class="bad-text">✕ none</span> : <>{group.masterId} <span class="dim">{group.masterAddress}</span></>}</dd></div>
        <div><dt>Epoch</dt><dd>{count(group.masterEpoch)}</dd></div>
        <div><dt>In sync</dt><dd><InSync group={group} /></dd></div>
        <div><dt>In / out a second</dt><dd>{rate(messagesIn(group))} / {rate(messagesOut(group))}</dd></div>
      </dl>
      {election && (
        <p class="dim last">Last election <Time ms={election.timeMs} />: {election.reason}</p>
      )}
    </article>
  );
}
