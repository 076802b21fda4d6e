import { render } from "preact";
import { session } from "./api/client";
import { LiveStatus } from "./api/live";
import { readSession } from "./api/session";
import { App } from "./app";
import { startRouter } from "./router";
import { startTheme } from "./theme";
import "./style/base.css";
import "./style/console.css";

startTheme();
startRouter();
const root = document.getElementById("app");
if (root) render(<App />, root);

const live = new LiveStatus();
let isStarted = false;

/** Events come after the log-in, and stop with it. */
function follow(): void {
  const { loginRequired, user } = session.get();
  const mayRead = !loginRequired || Boolean(user);
  if (mayRead === isStarted) return;
  isStarted = mayRead;
  if (mayRead) live.start();
  else live.stop();
}

readSession()
  .catch(() => undefined) // the stream of events says that the server is gone, and goes on trying
  .finally(() => {
    session.watch(follow);
    follow();
  });
