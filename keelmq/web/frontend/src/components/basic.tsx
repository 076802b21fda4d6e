/** Small parts that every page uses. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Verdict } from "../api/types";
import { duration, isoTime, time } from "../lib/format";
import { useNow } from "../lib/store";

export type Tone = "ok" | "warning" | "failed" | "plain" | "info";

const SIGNS: Readonly<Record<Tone, string>> = { ok: "✓", warning: "!", failed: "✕", plain: "•", info: "i" };

/** A state as colour, shape and word; the word alone is enough. */
export function Badge({ tone, children, title }: { tone: Tone; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${tone}`} title={title}>
      <span class="sign" aria-hidden="true">{SIGNS[tone]}</span>
      {children}
    </span>
  );
}

export function VerdictBadge({ verdict }: { verdict: Verdict }) {
  return <Badge tone={verdict}>{verdict === "ok" ? "OK" : verdict}</Badge>;
}

/** How old something is, in words that go on counting. at: of this browser's clock. */
export function Age({ at, lateAfterMs = 30_000 }: { at: number; lateAfterMs?: number }) {
  const now = useNow();
  if (!at) return null;
  const age = Math.max(now - at, 0);
  return (
    <time class={age > lateAfterMs ? "age late" : "age"} dateTime={isoTime(at)} title={isoTime(at)}>
      {age < 1000 ? "now" : age < 60_000 ? `${Math.floor(age / 1000)} s ago` : `${duration(age)} ago`}
    </time>
  );
}

/** A wall-clock time of a server. */
export function Time({ ms }: { ms: number | null | undefined }) {
  if (ms == null || ms <= 0) return <>–</>;
  return <time dateTime={isoTime(ms)} title={isoTime(ms)}>{time(ms)}</time>;
}

/** What went wrong, in the server's words; announced by screen readers. */
export function ErrorNote({ text, again }: { text: string; again?: () => void }) {
  if (!text) return null;
  return (
    <div class="note failed" role="alert">
      <span class="sign" aria-hidden="true">✕</span>
      <p>{text}</p>
      {again && <button type="button" onClick={again}>Try again</button>}
    </div>
  );
}

export function Note({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <div class={`note ${tone}`}>
      <span class="sign" aria-hidden="true">{SIGNS[tone]}</span>
      <div>{children}</div>
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Loading({ what }: { what: string }) {
  return <p class="empty" role="status">Loading {what} …</p>;
}

/** A list of names and values. */
export function KeyValue({ items }: { items: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="key-value">
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A command line with a button that copies it. */
export function Command({ line }: { line: string }) {
  const [state, setState] = useState("Copy");
  const text = useRef<HTMLElement>(null);
  useEffect(() => {
    if (state === "Copy") return;
    const timer = setTimeout(() => setState("Copy"), 2000);
    return () => clearTimeout(timer);
  }, [state]);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(line);
      setState("Copied");
    } catch {
      // Plain HTTP from another machine has no clipboard: select it, so that Ctrl+C does the rest.
      if (text.current) getSelection()?.selectAllChildren(text.current);
      setState("Selected");
    }
  };
  return (
    <span class="command">
      <code ref={text}>{line}</code>
      <button type="button" onClick={() => void copy()} aria-label={`Copy: ${line}`}>
        <span aria-live="polite">{state}</span>
      </button>
    </span>
  );
}

/** A part of a page with a heading. */
export function Card(props: { title: string; aside?: ComponentChildren; children: ComponentChildren; id?: string }) {
  return (
    <section class="card" aria-label={props.title} id={props.id}>
      <header>
        <h2>{props.title}</h2>
        {props.aside && <div class="aside">{props.aside}</div>}
      </header>
      {props.children}
    </section>
  );
}

/** The frame of a page: its heading gets the focus when the address changes. */
export function Page(props: {
  title: string;
  lead?: ComponentChildren;
  badge?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${props.title} · KeelMQ`;
  }, [props.title]);
  useEffect(() => {
    if (document.body.dataset["moved"]) heading.current?.focus({ preventScroll: true });
  }, []);
  return (
    <>
      <div class="page-head">
        <div>
          <h1 ref={heading} tabIndex={-1}>{props.title}</h1>
          {props.badge}
        </div>
        {props.actions && <div class="actions">{props.actions}</div>}
        {props.lead && <div class="lead">{props.lead}</div>}
      </div>
      {props.children}
    </>
  );
}

export interface Tab {
  key: string;
  title: string;
}

/** Links, not buttons: each tab has an address. */
export function Tabs(props: { tabs: readonly Tab[]; current: string; href: (key: string) => string; label: string }) {
  return (
    <nav class="tabs" aria-label={props.label}>
      {props.tabs.map((tab) => (
        <a key={tab.key} href={props.href(tab.key)} aria-current={tab.key === props.current ? "page" : undefined}>
          {tab.title}
        </a>
      ))}
    </nav>
  );
}

export function Field(props: {
  label: string;
  hint?: string;
  value: string;
  onValue: (value: string) => void;
  input?: Omit<JSX.InputHTMLAttributes, "value" | "onInput">;
}) {
  return (
    <label class="field">
      <span>{props.label}</span>
      <input {...props.input} value={props.value} onInput={(event) => props.onValue(event.currentTarget.value)} />
      {props.hint && <small>{props.hint}</small>}
    </label>
  );
}

export function Select(props: {
  label: string;
  value: string;
  options: readonly (readonly [string, string])[];
  onValue: (value: string) => void;
}) {
  return (
    <label class="field">
      <span>{props.label}</span>
      <select value={props.value} onChange={(event) => props.onValue(event.currentTarget.value)}>
        {props.options.map(([value, title]) => (
          <option key={value} value={value}>{title}</option>
        ))}
      </select>
    </label>
  );
}
