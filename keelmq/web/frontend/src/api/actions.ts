/** What an operator changes. Without `confirm` the answer is a preview (keelmq/console/actions/action.py). */

import { ApiError, post } from "./client";

export interface Preview {
  what: string;
  servers: string[];
  warnings: string[];
  /** The mqadmin or keelmq line that does the same. */
  command: string;
  /** False: it would be refused now; the warnings say why. */
  isPossible: boolean;
  /** What has to be typed first; empty: a click is enough. */
  typeToConfirm: string;
  details: Record<string, unknown>;
}

/** "unknown": it may have been done. "silent": not reached, nothing was done there. */
export interface ServerOutcome {
  server: string;
  outcome: "ok" | "refused" | "silent" | "unknown";
  code: number | null;
  remark: string;
}

/** confirmed false: the preview is what would happen. true: the results are what each server answered. */
export interface ActionResult {
  action: string;
  confirmed: boolean;
  done: boolean;
  preview: Preview | null;
  results: ServerOutcome[];
  remark: string;
}

export interface Action {
  /** Such as "electMaster". */
  name: string;
  parameters: Readonly<Record<string, unknown>>;
}

export async function preview(action: Action, signal?: AbortSignal): Promise<Preview> {
  const body = { parameters: action.parameters, confirm: false };
  const answer = await post<ActionResult>(`actions/${action.name}`, body, signal);
  if (answer.preview === null) throw new Error("the server sent no preview");
  return answer.preview;
}

/** Refused and unknown outcomes have an error's status, and are results all the same. */
export async function perform(action: Action): Promise<ActionResult> {
  try {
    return await post<ActionResult>(`actions/${action.name}`, { parameters: action.parameters, confirm: true });
  } catch (error) {
    if (error instanceof ApiError && isResult(error.value)) return error.value;
    throw error;
  }
}

function isResult(value: unknown): value is ActionResult {
  return typeof value === "object" && value !== null && Array.isArray((value as Partial<ActionResult>).results);
}
