/** Who is logged in. The cookie itself is invisible for scripts. */

import { get, post, session, type Session } from "./client";

export async function readSession(): Promise<void> {
  session.set(await get<Session>("session"));
}

export async function logIn(user: string, password: string): Promise<void> {
  session.set(await post<Session>("login", { user, password }));
}

export async function logOut(): Promise<void> {
  await post<unknown>("logout", {});
  await readSession();
}
