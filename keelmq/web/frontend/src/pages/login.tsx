/** Where security is on: the name and the password of a user of the cluster. */

import { useState } from "preact/hooks";
import { logIn } from "../api/session";
import { errorText } from "../api/client";
import { go, route } from "../router";
import { ErrorNote, Field, Page } from "../components/basic";

export function Login() {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await logIn(user, password);
      if (route.get().path === "/login") go("#/");
    } catch (reason) {
      setError(errorText(reason));
      setPassword("");
    } finally {
      setBusy(false);
    }
  };
  return (
    <Page title="Log in" lead="A user of the cluster. What you do is signed with it, so its permissions and the brokers' audit apply.">
      <form class="card login" onSubmit={(event) => void submit(event)}>
        <Field label="User" value={user} onValue={setUser} input={{ name: "username", autocomplete: "username", required: true, autofocus: true }} />
        <Field
          label="Password"
          value={password}
          onValue={setPassword}
          input={{ name: "password", type: "password", autocomplete: "current-password", required: true }}
        />
        <ErrorNote text={error} />
        <button type="submit" class="primary" disabled={isBusy}>{isBusy ? "Logging in …" : "Log in"}</button>
      </form>
    </Page>
  );
}
