/** A form whose answer is the preview of an action. */

import type { ComponentChildren } from "preact";
import { ActionDialog } from "./action";
import { Dialog } from "./dialog";

/** A form, and then the preview of what it asks for: no request while somebody types. */
export function FormThenAction(props: {
  title: string;
  verb: string;
  name: string;
  parameters: Readonly<Record<string, unknown>>;
  fields: ComponentChildren;
  isReady: boolean;
  setReady: (is: boolean) => void;
  isComplete: boolean;
  onClose: () => void;
}) {
  if (props.isReady) {
    return <ActionDialog title={props.title} verb={props.verb} action={{ name: props.name, parameters: props.parameters }} onClose={props.onClose} />;
  }
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form method="dialog" onSubmit={(event) => { event.preventDefault(); if (props.isComplete) props.setReady(true); }}>
        <div class="dialog-body">{props.fields}</div>
        <footer>
          <button type="button" onClick={props.onClose}>Cancel</button>
          <button type="submit" class="primary" disabled={!props.isComplete}>Next: what it does</button>
        </footer>
      </form>
    </Dialog>
  );
}
