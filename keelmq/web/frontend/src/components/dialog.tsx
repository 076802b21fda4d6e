/** The browser's own modal dialog: it keeps the focus inside, closes on Escape and gives the focus back. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; isBusy?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  const title = useId();
  useEffect(() => {
    const before = document.activeElement;
    const dialog = element.current;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby={title}
      onCancel={(event) => {
        event.preventDefault(); // an answer that is on its way would be lost
        if (!props.isBusy) props.onClose();
      }}
    >
      <header>
        <h2 id={title}>{props.title}</h2>
        <button type="button" class="plain" aria-label="Close" disabled={props.isBusy} onClick={props.onClose}>✕</button>
      </header>
      {props.children}
    </dialog>
  );
}
