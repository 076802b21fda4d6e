/** Requests to the server. A failure is an ApiError, whose text a person can use. */

import { Store } from "../lib/store";

/** Beside the page: /console/ and /v1/console/, also behind a proxy that adds a prefix. */
export function apiAddress(path: string, page: string = location.href): string {
  return new URL(`../v1/console/${path}`, page.split("#")[0]).href;
}

const TIMEOUT_MS = 30_000;

export class ApiError extends Error {
  constructor(
    /** 0: there was no answer. */
    readonly status: number,
    message: string,
    readonly value: unknown = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

export interface Session {
  /** Null: nobody is logged in. */
  user: string | null;
  /** Without a session everything else is refused. */
  loginRequired: boolean;
  /** No action is carried out here. */
  readOnly: boolean;
  signsActions: boolean;
  endsMs: number | null;
}

export const session = new Store<Session>({ user: null, loginRequired: false, readOnly: false, signsActions: false, endsMs: null });

/** How far this browser's clock is ahead of the server's, from the header Date; null: not known yet. */
export let clockAheadMs: number | null = null;

export type Query = Readonly<Record<string, string | number | boolean | undefined | null>>;

export async function get<Answer>(path: string, query: Query = {}, signal?: AbortSignal): Promise<Answer> {
  const address = new URL(apiAddress(path));
  for (const [name, value] of Object.entries(query)) {
    if (value != null && value !== "") address.searchParams.set(name, String(value));
  }
  return request<Answer>(address.href, { method: "GET" }, signal);
}

export async function post<Answer>(path: string, body: unknown, signal?: AbortSignal): Promise<Answer> {
  // JSON is what a form of another site cannot send; the cookie is SameSite=Strict besides.
  const headers = { "Content-Type": "application/json" };
  return request<Answer>(apiAddress(path), { method: "POST", headers, body: JSON.stringify(body) }, signal);
}

async function request<Answer>(address: string, init: RequestInit, signal?: AbortSignal): Promise<Answer> {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const signals = signal === undefined ? limit : AbortSignal.any([signal, limit]);
  let response: Response;
  try {
    response = await fetch(address, { ...init, signal: signals, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    const text = limit.aborted ? `no answer within ${TIMEOUT_MS / 1000} s` : "the server does not answer";
    throw new ApiError(0, `${text}; whether it did something is not known`);
  }
  const date = Date.parse(response.headers.get("date") ?? "");
  if (!Number.isNaN(date)) clockAheadMs = Date.now() - date;
  const value = await bodyOf(response);
  if (!response.ok) {
    // A wrong password says nothing about who may look.
    if (response.status === 401 && address !== apiAddress("login")) session.update((was) => ({ ...was, user: null, loginRequired: true }));
    throw new ApiError(response.status, problemText(response.status, value), value);
  }
  return value as Answer;
}

async function bodyOf(response: Response): Promise<unknown> {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The server's own words: the detail of application/problem+json. */
export function problemText(status: number, value: unknown): string {
  if (typeof value === "object" && value !== null) {
    const { detail } = value as { detail?: unknown };
    if (typeof detail === "string" && detail) return detail;
  }
  if (typeof value === "string" && value && value.length < 300 && !value.includes("<")) return value;
  return `the server answered with HTTP status ${status}`;
}

export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
