/* Drives a headless Chromium for the tests in Python: node drive.mjs COMMAND CHROMIUM BASE [ARGUMENTS].
 *
 * look ROUTES          opens each page (JSON list) in light, dark and on a phone; prints what axe and the console say
 * open ROUTE SELECTOR  prints how long it takes from the navigation until the selector is there, and how many rows;
 *                      then goes to the last row by the key End, and filters by its text
 * elect NAME ID        elects replica ID by the keyboard alone; prints the texts that it saw
 * master ROUTE         prints the master that the page of a group shows, and the next one, each with the time
 * login USER PASSWORD  logs in, prints the heading, logs out, prints the heading
 * gone                 prints the banner while the server is there, when it is gone, and when it is back
 * shoot FOLDER ROUTES  writes a picture of each page in light, dark and on a phone
 *
 * What it prints is JSON, a value a line. Errors end it with status 1.
 */

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const MODES = {
  light: { colorScheme: "light", viewport: { width: 1280, height: 860 } },
  dark: { colorScheme: "dark", viewport: { width: 1280, height: 860 } },
  phone: { colorScheme: "light", viewport: { width: 390, height: 800 }, hasTouch: true },
};
const DEADLINE_MS = 30_000;
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

/** A page whose errors are collected; requests to other servers are errors, too. */
async function opened(context, base) {
  const page = await context.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  const errors = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(new URL(base).origin) && !request.url().startsWith("data:")) errors.push(`asked ${request.url()}`);
  });
  return { page, errors };
}

async function ready(page, base, route) {
  await page.goto("about:blank");
  await page.goto(`${base}#${route}`);
  await page.waitForSelector("main h1");
  await page.waitForFunction(() => ![...document.querySelectorAll("main [role=status]")].some((each) => each.textContent.startsWith("Loading")));
}

/** What axe finds wrong, a line each. */
async function broken(page) {
  await page.evaluate(await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  const found = await page.evaluate(() => globalThis.axe.run());
  return found.violations.map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html).slice(0, 3).join(" ")}`);
}

async function look(browser, base, routes) {
  for (const [mode, options] of Object.entries(MODES)) {
    const context = await browser.newContext(options);
    const { page, errors } = await opened(context, base);
    for (const route of JSON.parse(routes)) {
      errors.length = 0;
      await ready(page, base, route);
      const wrong = await broken(page);
      const { width, wide } = await page.evaluate(() => ({ width: innerWidth, wide: document.documentElement.scrollWidth }));
      if (wide > width) wrong.push(`the page is ${wide} wide, and the window ${width}`);
      print({ mode, route, heading: await page.textContent("main h1"), errors: [...errors], broken: wrong, text: await page.innerText("main") });
    }
    await context.close();
  }
}

async function open(browser, base, route, selector) {
  const { page } = await opened(await browser.newContext(MODES.light), base);
  const began = performance.now();
  await page.goto(`${base}#${route}`);
  await page.waitForSelector(selector);
  const ms = Math.round(performance.now() - began);
  const rows = await page.locator("tbody tr[data-row]").count();
  await page.locator("tbody tr[data-row] a").first().focus();
  await page.keyboard.press("End");
  await page.waitForFunction(() => document.activeElement?.closest("tr") !== null);
  const last = await page.evaluate(() => document.activeElement.textContent);
  const filter = performance.now();
  await page.fill("input[type=search]", last);
  await page.waitForFunction(() => document.querySelectorAll("tbody tr[data-row]").length === 1);
  print({ ms, rows, last, filterMs: Math.round(performance.now() - filter), found: await page.textContent(".found, nav [role=status]") });
}

/** Presses Tab until the focus is on an element with this text. */
async function tabTo(page, text) {
  for (let presses = 0; presses < 60; presses += 1) {
    await page.keyboard.press("Tab");
    if (await page.evaluate((wanted) => document.activeElement?.textContent?.trim() === wanted, text)) return;
  }
  throw new Error(`Tab never came to ${text}`);
}

async function elect(browser, base, name, id) {
  const { page, errors } = await opened(await browser.newContext(MODES.light), base);
  await ready(page, base, "/groups");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter"); // the skip link
  await tabTo(page, name);
  await page.keyboard.press("Enter");
  await page.waitForFunction((wanted) => document.activeElement?.tagName === "H1" && document.activeElement.textContent === wanted, name);
  await tabTo(page, "Elect a master …");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open] .dialog-body p");
  await page.locator("dialog select").focus();
  await page.keyboard.type(id); // as with every select: the first letters of an option
  await page.waitForSelector(`dialog .preview >> text=/Broker ${id} /`);
  const seen = { preview: await page.innerText("dialog .preview"), command: await page.innerText("dialog .command code") };
  seen.broken = await broken(page);
  await tabTo(page, "Elect");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog .outcome");
  const outcome = await page.innerText("dialog .outcome");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  const focus = await page.evaluate(() => document.activeElement.textContent);
  await page.waitForSelector(`dd >> text="broker ${id}"`);
  print({ ...seen, outcome, focus, errors });
}

async function master(browser, base, route) {
  const { page } = await opened(await browser.newContext(MODES.light), base);
  await ready(page, base, route);
  const first = await page.innerText(".key-value div:first-child dd");
  print({ master: first, atMs: Date.now() });
  const changed = (was) => {
    const text = document.querySelector(".key-value dd")?.textContent ?? "";
    return text.startsWith("broker ") && text !== was && { master: text, atMs: Date.now() };
  };
  print(await (await page.waitForFunction(changed, first, { polling: 20 })).jsonValue());
}

async function login(browser, base, user, password) {
  const { page, errors } = await opened(await browser.newContext(MODES.light), base);
  const headings = [];
  await ready(page, base, "/");
  headings.push(await page.textContent("main h1"));
  for (const [name, word] of [[user, "wrong"], [user, password]]) {
    await page.fill("input[name=username]", name);
    await page.fill("input[name=password]", word);
    await page.keyboard.press("Enter");
    if (word === "wrong") headings.push(await page.innerText("main [role=alert]"));
  }
  await page.waitForSelector(".verdict");
  headings.push(await page.textContent("main h1"));
  await page.click("text=Log out");
  await page.waitForSelector("input[name=username]");
  headings.push(await page.textContent("main h1"));
  print({ headings, errors });
}

async function gone(browser, base) {
  const { page } = await opened(await browser.newContext(MODES.light), base);
  await ready(page, base, "/");
  await page.waitForSelector(".verdict");
  const seen = async () => ({ banner: await page.innerText(".banner"), heading: await page.textContent("main h1"), text: await page.innerText("main") });
  print({ banner: (await seen()).banner });
  await page.waitForSelector(".banner:not(.none)");
  print(await seen());
  await page.waitForSelector(".banner.none", { state: "attached" });
  await page.waitForSelector(".verdict.failed");
  print(await seen());
}

async function shoot(browser, base, folder, routes) {
  for (const [mode, options] of Object.entries(MODES)) {
    const { page } = await opened(await browser.newContext(options), base);
    for (const route of JSON.parse(routes)) {
      await ready(page, base, route);
      await page.waitForTimeout(600);
      const name = route.replace(/[^a-z0-9]+/gi, "-").replace(/^-|-$/g, "") || "overview";
      await page.screenshot({ path: `${folder}/${name}-${mode}.png`, fullPage: true });
    }
  }
}

const COMMANDS = { look, open, elect, master, login, gone, shoot };
const [command, executablePath, base, ...rest] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
try {
  await COMMANDS[command](browser, base, ...rest);
} finally {
  await browser.close();
}
