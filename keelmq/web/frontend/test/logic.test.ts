import { describe, expect, test } from "vitest";
import { problemText } from "../src/api/client";
import { applied } from "../src/api/live";
import { summary } from "../src/components/chart";
import { nextRow } from "../src/components/table";
import * as format from "../src/lib/format";
import { filtered, sorted, sortOf, sortText, visible } from "../src/lib/rows";
import { link, linkWith, matched, routeOf } from "../src/router";
import { cluster, group } from "./fixtures";

describe("formats", () => {
  test("unknown is a dash, and never zero", () => {
    for (const text of [format.bytes(null), format.count(undefined), format.duration(null), format.rate(null), format.percent(null)]) {
      expect(text).toBe("–");
    }
    expect(format.bytes(0)).toBe("0 B");
  });

  test.each([
    [1023, "1023 B"],
    [1024, "1.0 KiB"],
    [150 * 1024, "150 KiB"],
    [5 * 1024 ** 3, "5.0 GiB"],
    [-2048, "−2.0 KiB"],
  ])("%d bytes", (value, text) => expect(format.bytes(value)).toBe(text));

  test.each([
    [78, "78 ms"],
    [1500, "1.5 s"],
    [59_600, "60 s"],
    [61_000, "1 min 1 s"],
    [3_660_000, "1 h 1 min"],
    [49 * 3_600_000, "2 d 1 h"],
  ])("%d ms", (value, text) => expect(format.duration(value)).toBe(text));
});

describe("rows", () => {
  const rows = [{ name: "broker-10", lag: null }, { name: "broker-2", lag: 5 }, { name: "Broker-1", lag: 7 }];

  test("names are in the order of their numbers; unknown values last both ways", () => {
    expect(sorted(rows, (row) => row.name, false).map((row) => row.name)).toEqual(["Broker-1", "broker-2", "broker-10"]);
    expect(sorted(rows, (row) => row.lag, false).map((row) => row.lag)).toEqual([5, 7, null]);
    expect(sorted(rows, (row) => row.lag, true).map((row) => row.lag)).toEqual([7, 5, null]);
  });

  test("every word of the filter must be there", () => {
    expect(filtered(rows, "BROKER 2", (row) => row.name)).toEqual([rows[1]]);
    expect(filtered(rows, "  ", (row) => row.name)).toBe(rows);
  });

  test("only a part of a long table is drawn", () => {
    expect(visible(3000, 37, 0, 600, 5)).toEqual({ from: 0, to: 22 });
    expect(visible(3000, 37, 2999 * 37, 600, 5)).toEqual({ from: 2994, to: 3000 });
    expect(visible(0, 37, 0, 600)).toEqual({ from: 0, to: 0 });
  });

  test("a sort order survives the address", () => {
    expect(sortText(sortOf("-lag"))).toBe("-lag");
    expect(sortOf("")).toBeNull();
  });

  test("keys move within the table", () => {
    expect(nextRow("ArrowUp", 0, 3000, 600)).toBe(0);
    expect(nextRow("PageDown", 0, 3000, 370)).toBe(9);
    expect(nextRow("End", 0, 3000, 600)).toBe(2999);
    expect(nextRow("a", 0, 3000, 600)).toBeNull();
  });
});

describe("routes", () => {
  test("names with slashes and percent signs", () => {
    const href = link("/groups", "a/b", "100%");
    expect(matched("/groups/:cluster/:name", routeOf(href).path)).toEqual({ cluster: "a/b", name: "100%" });
    expect(matched("/groups/:cluster/:name", "/groups/a/%")).toBeNull();
    expect(matched("/groups", "/controllers")).toBeNull();
  });

  test("empty values are not in the address", () => {
    expect(linkWith("/topics", { q: "", sort: "-name", tab: undefined })).toBe("#/topics?sort=-name");
    expect(routeOf("").path).toBe("/");
  });
});

describe("the picture", () => {
  const change = { takenMs: 2, tookMs: 1, verdict: "ok" as const, nameServers: null, controllers: null, problems: null, brokersNotAsked: 0 };

  test("groups change, come and go; the rest is as before", () => {
    const before = cluster({ groups: [group({ brokerName: "a" }), group({ brokerName: "c" })] });
    const news = [group({ brokerName: "b" }), group({ brokerName: "c", masterEpoch: 9 })];
    const removedGroups = [{ cluster: "KeelCluster", brokerName: "a" }];
    const after = applied(before, { ...change, groups: news, removedGroups });
    expect(after.groups.map((each) => [each.brokerName, each.masterEpoch])).toEqual([["b", 3], ["c", 9]]);
    expect(after.controllers).toBe(before.controllers);
    expect(after.takenMs).toBe(2);
  });
});

test("the server's own words are shown", () => {
  expect(problemText(409, { title: "Conflict", status: 409, code: 2012, detail: "broker 7 is not in the SyncStateSet" })).toBe("broker 7 is not in the SyncStateSet");
  expect(problemText(422, { detail: "body.topic: Field required", problems: [] })).toBe("body.topic: Field required");
  expect(problemText(502, "<html>Bad gateway</html>")).toBe("the server answered with HTTP status 502");
});

test("a chart says in words what its lines show", () => {
  const text = summary({ title: "Lag", series: [{ label: "2", values: [5, null, 3] }, { label: "3", values: [null] }], format: format.bytes });
  expect(text).toBe("Lag. 2: now 3 B, at most 5 B; 3: not known");
});
