// A run under way: its progress by server-sent events, or by asking again when another process has it under way.

import { announce } from "./page.js";

const PARTS = [["passed", "passed"], ["not_evaluated", "not_evaluated"], ["errored", "error"], ["failed", "failed"]];
const POLL_MS = 3000;
const QUARTERS = 4;
const SHOWN_PROBLEMS = 5;

const box = document.querySelector("[data-live-run]");
const run = box.dataset.liveRun;
const bar = box.querySelector("[data-live-bar]");
const text = box.querySelector("[data-live-text]");
const problems = box.querySelector("[data-live-problems]");
let quarter = 0;

function drawBar(svg, counts) {
  const pieces = [];
  let start = 0;
  for (const [name, status] of PARTS) {
    const width = counts.total ? (100 * counts[name]) / counts.total : 0;
    const piece = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ class: `fill-${status}`, x: start, width, height: 6 })) piece.setAttribute(key, value);
    pieces.push(piece);
    start += width;
  }
  svg.replaceChildren(...pieces);
}

function show(counts) {
  drawBar(bar, counts);
  const parts = [`${counts.passed.toLocaleString("en")} passed`];
  if (counts.failed) parts.push(`${counts.failed.toLocaleString("en")} failed`);
  if (counts.errored) parts.push(`${counts.errored.toLocaleString("en")} errors`);
  text.textContent = `${counts.done.toLocaleString("en")} of ${counts.total.toLocaleString("en")} done · ${parts.join(", ")}`;
  const reached = counts.total ? Math.floor((QUARTERS * counts.done) / counts.total) : 0;
  if (reached > quarter) {
    quarter = reached;
    announce(text.textContent);
  }
}

function addProblem(item) {
  if (item.status !== "failed" && item.status !== "error") return;
  const line = document.createElement("li");
  const link = document.createElement("a");
  link.href = `/runs/${encodeURIComponent(run)}/results/${item.test_index}/${item.repeat_index}/${item.column}`;
  link.textContent = `#${item.test_index + 1} ${item.status === "failed" ? "failed" : "error"}`;
  const reason = document.createElement("span");
  reason.className = "reason-line";
  reason.dir = "auto";
  reason.textContent = item.reason ?? item.description ?? "";
  line.append(link, reason);
  problems.prepend(line);
  while (problems.children.length > SHOWN_PROBLEMS) problems.lastElementChild.remove();
}

/** Load the page anew, but not under the hands of somebody who reads a case or types. */
function reload() {
  const isBusy = document.querySelector("dialog[open]") || document.activeElement?.matches("input, select, textarea");
  if (isBusy) setTimeout(reload, POLL_MS);
  else location.reload();
}

function finish(status) {
  box.querySelector("[data-live-title]").textContent = `Run ${status}`;
  announce(`The run is ${status}.`);
  setTimeout(reload, 300);
}

const source = new EventSource(`/api/runs/${encodeURIComponent(run)}/events`);
const onEvent = {
  state(event) {
    show(event.counts);
    problems.replaceChildren();
    event.problems.forEach(addProblem);
  },
  case(event) {
    show(event.counts);
    addProblem(event.case);
  },
  stopping() {
    box.querySelector("[data-live-title]").textContent = "Stopping";
  },
  finished(event) {
    source.close();
    finish(event.run.status);
  },
  broken() {
    source.close();
    finish("broken");
  },
  elsewhere() {
    source.close();
    setTimeout(reload, POLL_MS);
  },
};
for (const [name, act] of Object.entries(onEvent)) {
  source.addEventListener(name, (message) => act(JSON.parse(message.data)));
}
source.addEventListener("error", () => {
  if (source.readyState === EventSource.CLOSED) setTimeout(reload, POLL_MS);
});
