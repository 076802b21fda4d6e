/** The analytics page, live and as a report: the header of the console around what dashboard.js draws. */

import { render } from "preact";
import { Top } from "../components/top";
import "../style/base.css";
import "../style/analytics.css";
import { startTheme } from "../theme";
import { start } from "./dashboard";

/** `data-console` of the element: where a console is served, "" without one. */
const root = document.getElementById("app");
if (root) {
  const home = root.dataset["console"];
  startTheme();
  render(
    <>
      <Top home={home} aside={home && <a href={home}>Console</a>}>
        <h1>{document.title}<small>Broker fail-over and replication lag</small></h1>
        <div id="group" />
        <p id="status" role="status" hidden />
      </Top>
      <main />
    </>,
    root,
  );
  start();
}
