// A run under way: each time that something happens in it, the parts of the page that say so are renewed from the
// server's own page, so that all numbers on it belong together. Nodes that stay equal stay the same nodes: focus,
// scroll and clicks are not disturbed.

import { announce, localTimes, pageAt } from "./page.js";
import { showActions } from "./run-actions.js";

const LEAST_PAUSE_MS = 500;
const SHARE_OF_TIME = 5;
const AGAIN_MS = 2000;
const QUARTERS = 4;
/** Attributes that scripts set here and the server's page lacks. */
const KEPT = new Set(["tabindex", "role", "open", "hidden", "aria-expanded"]);

const run = document.querySelector("[data-live-run]").dataset.liveRun;
const lost = document.querySelector("[data-live-lost]");
let source = null;
let timer = 0;
let cost = 0;
let quarter = 0;
let isPressed = false;

const keyOf = (node) => node.dataset?.key;

/** Make `old` equal to `fresh`, changing as little as possible. Children with a data-key are found again by it. */
function renew(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !KEPT.has(name)) old.setAttribute(name, value);
  if (old.matches("time[data-when]") && old.title === fresh.dateTime) return;
  const keyed = new Map([...old.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const same = keyOf(wanted) ? keyed.get(keyOf(wanted)) : place && !keyOf(place) && place.nodeName === wanted.nodeName ? place : null;
    if (!same) old.insertBefore(document.importNode(wanted, true), place);
    else {
      if (same !== place) old.insertBefore(same, place);
      renew(same, wanted);
      place = same.nextSibling;
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/** Somebody reads a case, chooses, types or marks text: nothing is moved under their hands. */
function isBusy() {
  const isTyping = document.activeElement?.matches("[data-live-part] :is(input, select, textarea)");
  return isPressed || isTyping || document.querySelector("dialog[open]") || !getSelection().isCollapsed;
}

function renewSoon(pause = Math.max(LEAST_PAUSE_MS, SHARE_OF_TIME * cost)) {
  timer ||= setTimeout(renewPage, pause);
}

async function renewPage() {
  timer = 0;
  if (isBusy()) {
    renewSoon(LEAST_PAUSE_MS);
    return;
  }
  const begun = performance.now();
  const answer = await pageAt(location.pathname + location.search).catch(() => null);
  cost = performance.now() - begun;
  if (!answer) renewSoon(AGAIN_MS);
  else if (answer.status !== 200) say(answer.status === 404 ? "This run is no longer stored." : "The server refuses this page: open the URL that it printed when it started.");
  else if (isBusy()) renewSoon(LEAST_PAUSE_MS);
  else show(answer.page);
}

function show(page) {
  say("");
  for (const part of document.querySelectorAll("[data-live-part]")) {
    const fresh = page.querySelector(`[data-live-part="${part.dataset.livePart}"]`);
    if (fresh) renew(part, fresh);
  }
  localTimes();
  showActions();
  document.dispatchEvent(new CustomEvent("geval:results"));
  const text = document.querySelector("[data-live-text]");
  if (!text) {
    close();
    announce(`The run is ${document.querySelector("[data-run-status]").dataset.runStatus}.`);
    return;
  }
  const [done, total] = text.dataset.liveText.split("/").map(Number);
  const reached = total ? Math.floor((QUARTERS * done) / total) : 0;
  if (reached > quarter) announce(text.textContent);
  quarter = reached;
}

function say(text) {
  lost.hidden = !text;
  lost.textContent = text;
}

function close() {
  source?.close();
  source = null;
}

function watch() {
  if (source || document.hidden || !document.querySelector("[data-live-run]")) return;
  source = new EventSource(`/api/runs/${encodeURIComponent(run)}/events`);
  for (const name of ["state", "case", "stopping", "finished", "broken"]) source.addEventListener(name, () => renewSoon());
  for (const name of ["finished", "broken"]) source.addEventListener(name, close);
  source.addEventListener("open", () => say(""));
  source.addEventListener("error", () => {
    if (!source) return;
    say("The server does not respond. This page continues when it is back.");
    if (source.readyState !== EventSource.CLOSED) return;
    close();
    setTimeout(() => { watch(); renewSoon(); }, AGAIN_MS);
  });
}

for (const [name, value] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) {
  addEventListener(name, () => { isPressed = value; });
}
// A browser has few connections to one server: tabs that no one looks at leave theirs to the others.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) close();
  else {
    watch();
    renewSoon(0);
  }
});
watch();
