// Rating with a server: outputs come from it one by one, and every label is in its store before the next is shown.

import { UNREACHED, send, sentence } from "./editor-server.js";
import { rateOutputs } from "./label.js";
import { make, pageAt } from "./page.js";
import { leadBack } from "./place.js";

const isUnreached = () => { throw new Error(sentence(UNREACHED)); };

const api = (runId) => `/api/runs/${encodeURIComponent(runId)}`;
const pages = (runId) => `/runs/${encodeURIComponent(runId)}`;

class ServerLabels {
  constructor(runId, backLink) {
    this.runId = runId;
    this.against = new URLSearchParams(location.search).get("against") ?? ""; // of two runs, nothing says which is shown
    this.backLink = backLink;
  }

  async sheet(choice) {
    const { against } = this;
    const query = new URLSearchParams(Object.entries({ ...choice, against }).filter(([, value]) => value));
    const response = await fetch(`${api(this.runId)}/labels/sheet?${query}`).catch(isUnreached);
    const body = await response.json();
    if (!response.ok) throw new Error(sentence(body));
    return body;
  }

  async show(output, { annotator, verdict }) {
    const query = new URLSearchParams({ id: output.id, metric: output.metric, annotator, verdict, blind: Boolean(this.against) });
    const { page, status } = await pageAt(`${pages(output.run_id)}/label/output?${query}`).catch(isUnreached);
    const found = page.querySelector("[data-rated]");
    if (!found) throw new Error(page.querySelector("main")?.textContent.trim().replace(/\s+/g, " ") ?? `the server answered ${status}`);
    const title = found.querySelector("[data-rated-title]");
    const { label, note } = JSON.parse(found.dataset.rated);
    title.remove();
    return { element: document.adoptNode(found), title: title.textContent.trim(), label, note, hasVerdict: Boolean(found.querySelector("[data-rated-verdict]")) };
  }

  async keep(output, { label, note, annotator, scale, draw }) {
    const given = { id: output.id, metric: output.metric, output_sha256: output.output_sha256, label, note, annotator, scale };
    if (draw) given.seed = Number(draw.replace("seed ", ""));
    const answer = await send(`${api(output.run_id)}/labels`, { labels: [given] });
    if (!answer.ok) throw new Error(sentence(answer.body));
  }

  /** The choice that the address names. */
  asked() {
    const query = new URLSearchParams(location.search);
    return Object.fromEntries(["metric", "draw", "seed", "scale"].map((name) => [name, query.get(name) ?? ""]));
  }

  /** Put the choice into the address, so that a reloaded page goes on where it was. */
  remember({ metric, draw, seed, scale }, at) {
    const query = new URLSearchParams(Object.entries({ against: this.against, metric, draw, seed, scale, at }).filter(([, value]) => value));
    history.replaceState(history.state, "", location.pathname + (query.size ? `?${query}` : ""));
  }

  leave() {
    this.backLink.click();
  }

  endText() {
    return "All labels are saved. Now see where the judge disagrees.";
  }

  endLinks() {
    return [this.runId, this.against].filter(Boolean).map((runId, place) => {
      const words = this.against ? `Judge and human labels, ${place ? "before" : "after"}` : "Judge and human labels";
      return make("a", { class: place ? "button" : "button is-primary", href: `${pages(runId)}/labels` }, words);
    });
  }
}

const root = document.querySelector("[data-labelling]");
const back = document.querySelector("[data-back]");
leadBack(back, back.getAttribute("href"));
const source = new ServerLabels(root.dataset.labelling, back);
rateOutputs(root, source).begin(new URLSearchParams(location.search).get("at") ?? "");
