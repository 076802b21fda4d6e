/** The dialog of an action: what would happen, a confirmation, what happened on each server.
 *
 * Usage: const action = useAction(); <button onClick={() => action.start({ title, verb, action: { name, parameters } })}>,
 * and {action.dialog} somewhere on the page.
 */

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { perform, preview, type Action, type ActionResult, type Preview, type ServerOutcome } from "../api/actions";
import { errorText } from "../api/client";
import { Badge, Command, ErrorNote, Field, Note } from "./basic";
import { Dialog } from "./dialog";

const TYPING_MS = 400;

export interface ActionRequest {
  title: string;
  /** On the button that does it, such as "Elect". */
  verb: string;
  action: Action;
  /** Called after it was done, whatever came of it. */
  onDone?: (outcome: ActionResult) => void;
}

export function useAction(): { start: (request: ActionRequest) => void; dialog: VNode | null } {
  const [request, setRequest] = useState<ActionRequest | null>(null);
  const dialog = request && <ActionDialog key={request.action.name} {...request} onClose={() => setRequest(null)} />;
  return { start: setRequest, dialog };
}

export function ActionDialog(props: ActionRequest & { onClose: () => void; fields?: ComponentChildren }) {
  const [plan, setPlan] = useState<Preview | null>(null);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState("");
  const [outcome, setOutcome] = useState<ActionResult | null>(null);
  const [isBusy, setBusy] = useState(false);
  const key = JSON.stringify(props.action);
  const isFirst = useRef(true);
  useEffect(() => {
    const stop = new AbortController();
    setPlan(null);
    setError("");
    const ask = (): void => {
      preview(props.action, stop.signal).then(setPlan, (reason: unknown) => {
        if (!stop.signal.aborted) setError(errorText(reason));
      });
    };
    // Somebody who types a value does not ask the servers about each letter.
    const timer = setTimeout(ask, isFirst.current ? 0 : TYPING_MS);
    isFirst.current = false;
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [key]);

  const isConfirmed = plan !== null && plan.isPossible && (!plan.typeToConfirm || typed === plan.typeToConfirm);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!isConfirmed || isBusy) return;
    setBusy(true);
    setError("");
    try {
      const done = await perform(props.action);
      setOutcome(done);
      props.onDone?.(done);
    } catch (reason) {
      setError(errorText(reason));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose} isBusy={isBusy}>
      <form method="dialog" onSubmit={(event) => void submit(event)}>
        <div class="dialog-body">
          {outcome === null && props.fields}
          {plan === null && !error && <p role="status">Asking the servers what this would do …</p>}
          {outcome === null && plan && (
            <div class="preview">
              <p>{plan.what}</p>
              {plan.warnings.map((text) => <Note key={text} tone={plan.isPossible ? "warning" : "failed"}>{text}</Note>)}
              <Before details={plan.details} />
              {plan.servers.length > 0 && (
                <p class="servers">
                  <small>Servers that change</small>
                  {plan.servers.map((server) => <code key={server}>{server}</code>)}
                </p>
              )}
              {plan.isPossible && plan.typeToConfirm && (
                <Field
                  label={`Type ${plan.typeToConfirm} to confirm`}
                  value={typed}
                  onValue={setTyped}
                  input={{ autocomplete: "off", spellcheck: false, autofocus: true, name: "confirm" }}
                />
              )}
            </div>
          )}
          {outcome && (
            <div role="status" class="outcome">
              <Note tone={outcome.done ? "ok" : "failed"}>{outcome.done ? "Done." : verdictOf(outcome)}</Note>
              <Outcomes servers={outcome.results} />
            </div>
          )}
          <ErrorNote text={error} />
          {plan?.command && (
            <div class="equivalent">
              <small>The same on the command line</small>
              <Command line={plan.command} />
            </div>
          )}
        </div>
        <footer>
          <button type="button" onClick={props.onClose} disabled={isBusy}>{outcome ? "Close" : "Cancel"}</button>
          {outcome === null && (
            <button type="submit" class={plan?.typeToConfirm ? "danger" : "primary"} disabled={!isConfirmed || isBusy}>
              {isBusy ? "Working …" : props.verb}
            </button>
          )}
        </footer>
      </form>
    </Dialog>
  );
}

/** Of a setting: its value at each server until now. */
function Before({ details }: { details: Preview["details"] }) {
  const before = details["before"];
  if (typeof before !== "object" || before === null) return null;
  return (
    <ul class="effects">
      {Object.entries(before).map(([server, value]) => (
        <li key={server}><code>{server}</code> <span class="dim">until now</span> <code>{value === null ? "not known" : String(value) || "empty"}</code></li>
      ))}
    </ul>
  );
}

function verdictOf(outcome: ActionResult): string {
  if (outcome.results.some((each) => each.outcome === "unknown")) return "Nobody knows whether it was done: look, then repeat it.";
  return outcome.results.some((each) => each.outcome === "ok") ? "Only some servers did it." : "It was refused; nothing has changed.";
}

const TONES = { ok: "ok", refused: "failed", silent: "failed", unknown: "warning" } as const;

function Outcomes({ servers }: { servers: readonly ServerOutcome[] }) {
  return (
    <ul class="effects">
      {servers.map((each) => (
        <li key={each.server}>
          <code>{each.server}</code>
          <Badge tone={TONES[each.outcome]}>{each.outcome === "ok" ? "done" : each.outcome}</Badge>
          <span>{each.remark}</span>
        </li>
      ))}
    </ul>
  );
}
