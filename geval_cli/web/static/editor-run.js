// The run of a suite: begun, watched by server-sent events, stopped.

import { announce } from "./page.js";
import { send } from "./editor-server.js";

const PARTS = [["passed", "passed"], ["not_evaluated", "not_evaluated"], ["errored", "error"], ["failed", "failed"]];
const EVENTS = ["message", "state", "case", "notice", "stopping", "finished", "broken", "elsewhere"];
const SHOWN_PROBLEMS = 5;
const READ_RESULTS = 200;
const SVG = "http://www.w3.org/2000/svg";

export class LiveRun {
  constructor(box, onEnd) {
    const part = (name) => box.querySelector(`[data-live-${name}]`);
    this.box = box;
    this.onEnd = onEnd;
    this.title = part("title");
    this.text = part("text");
    this.bar = part("bar");
    this.link = part("link");
    this.problems = part("problems");
    this.stopButton = box.querySelector("[data-stop]");
    this.stopButton.addEventListener("click", () => this.stop());
    this.id = null;
  }

  get isRunning() {
    return this.id !== null;
  }

  /** Begin a run of a config; the refusal, if there is one. */
  async start(config) {
    const answer = await send("/api/runs", { config });
    if (!answer.ok) return answer.body;
    this.id = answer.body.id;
    this.reached = 0;
    this.problems.replaceChildren();
    this.bar.replaceChildren();
    this.text.textContent = "";
    this.title.textContent = "Running";
    this.link.href = `/runs/${encodeURIComponent(this.id)}`;
    this.link.hidden = true;
    this.stopButton.hidden = false;
    this.stopButton.disabled = false;
    this.box.hidden = false;
    this.box.scrollIntoView({ block: "nearest" });
    announce("The run has begun.");
    this.watch();
    return null;
  }

  watch() {
    const source = new EventSource(`/api/runs/${encodeURIComponent(this.id)}/events`);
    const take = (message) => {
      if (!message.data) return;
      const event = JSON.parse(message.data);
      if (event.counts) this.show(event.counts);
      if (event.type === "state") event.problems.forEach((item) => this.addProblem(item));
      else if (event.type === "case") this.addProblem(event.case);
      else if (event.type === "stopping") this.title.textContent = "Stopping";
      else if (event.type === "finished") {
        source.close();
        this.finish(event.run.status, event.summary);
      } else if (event.type === "broken") {
        source.close();
        this.end(event.message);
      }
    };
    for (const name of EVENTS) source.addEventListener(name, take);
  }

  show(counts) {
    let start = 0;
    this.bar.replaceChildren(...PARTS.map(([name, status]) => {
      const piece = document.createElementNS(SVG, "rect");
      const width = counts.total ? (100 * counts[name]) / counts.total : 0;
      for (const [key, value] of Object.entries({ class: `fill-${status}`, x: start, width, height: 6 })) piece.setAttribute(key, value);
      start += width;
      return piece;
    }));
    const words = [`${counts.passed} passed`, `${counts.failed} failed`, `${counts.errored} ${counts.errored === 1 ? "error" : "errors"}`, `${counts.not_evaluated} not evaluated`];
    const shown = words.filter((word, index) => index < 2 || !word.startsWith("0 "));
    this.text.textContent = `${counts.done} of ${counts.total} done: ${shown.join(", ")}`;
    const quarter = counts.total ? Math.floor((4 * counts.done) / counts.total) : 0;
    if (quarter > this.reached) announce(this.text.textContent);
    this.reached = quarter;
  }

  addProblem(item) {
    if (item.status !== "failed" && item.status !== "error") return;
    const line = document.createElement("li");
    const link = document.createElement("a");
    link.href = `/runs/${encodeURIComponent(this.id)}/results/${item.test_index}/${item.repeat_index}/${item.column}`;
    link.textContent = `#${item.test_index + 1} ${item.status}`;
    const reason = document.createElement("span");
    reason.dir = "auto";
    reason.textContent = item.reason ?? item.description ?? "";
    line.append(link, reason);
    this.problems.prepend(line);
    while (this.problems.children.length > SHOWN_PROBLEMS) this.problems.lastElementChild.remove();
  }

  async readProblems() {
    const response = await fetch(`/api/runs/${encodeURIComponent(this.id)}/results?limit=${READ_RESULTS}`);
    if (!response.ok) return;
    this.problems.replaceChildren();
    for (const result of (await response.json()).results) {
      const broken = result.assertions.find((assertion) => assertion.status === result.status);
      const reason = result.error?.message ?? broken?.error?.message ?? broken?.reason;
      this.addProblem({ ...result, reason });
    }
  }

  async stop() {
    this.stopButton.disabled = true;
    const answer = await send(`/api/runs/${encodeURIComponent(this.id)}/stop`, {});
    if (!answer.ok) {
      this.text.textContent = answer.body.detail;
      this.stopButton.disabled = false;
    }
  }

  /** A short run may be over before anybody could watch it: then its results say what its events would have said. */
  async finish(status, summary) {
    this.show({ done: summary.total, ...summary });
    const missing = Math.min(SHOWN_PROBLEMS, summary.failed + summary.errored);
    if (this.problems.children.length < missing) await this.readProblems();
    const judged = summary.passed + summary.failed;
    const rate = judged ? `${Math.round((100 * summary.passed) / judged)} % passed` : "nothing was judged";
    this.end(status === "completed" ? `Run completed: ${rate}` : `Run ${status}: ${rate}`);
  }

  end(title) {
    this.title.textContent = title;
    this.stopButton.hidden = true;
    this.link.hidden = false;
    this.id = null;
    announce(title);
    this.onEnd();
  }
}
