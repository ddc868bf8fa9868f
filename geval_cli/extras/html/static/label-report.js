// Rating in a report: the outputs are those of the file, and labels stay in the open page until they are downloaded.

import { rateOutputs } from "./label.js";
import { make, makeButton, offerFile } from "./page.js";
import { allRows, load } from "./report.js";

const { run_id: runId, metrics, columns } = JSON.parse(document.getElementById("label-data").textContent);
const root = document.querySelector("[data-labelling]");
const main = document.getElementById("content");
const opener = document.querySelector("[data-label-open]");

const idOf = (found) => found.id ?? found.at.join(".");
const isScored = (found, names) => names.some((name) => found.metrics[name] && found.metrics[name][0] !== "error" && found.metrics[name][1] !== null);

async function digest(text) {
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The same draw as `geval label --draw COUNT --seed SEED`: by the hash of the seed and each id. */
async function draw(cases, count, seed) {
  if (!globalThis.crypto?.subtle) throw new Error("this browser cannot draw at random on a page opened from disk; rate all, or use geval label");
  const placed = await Promise.all(cases.map(async (found) => [await digest(`${seed}:${idOf(found)}`), found]));
  return placed.sort(([one], [other]) => (one < other ? -1 : 1)).slice(0, count).map(([, found]) => found);
}

class ReportLabels {
  #rows = new Map(); // by output, metric and annotator, in the order in which they were given
  #scales = new Map();
  #isDownloaded = true;

  constructor() {
    addEventListener("beforeunload", (event) => {
      if (!this.#isDownloaded) event.preventDefault();
    });
  }

  async sheet({ metric, draw: count, seed, annotator, scale }) {
    const judged = metrics.filter((item) => item.is_judged);
    const names = metric ? [metric] : (judged.length ? judged : metrics).map((item) => item.name);
    const asked = scale ? scale.split(",").map(Number) : null;
    const all = (await allRows()).flatMap((row) => [...row.cases.values()].flat());
    const fitting = all.filter((found) => found.sha && names.some((name) => found.metrics[name]));
    const number = seed || "0";
    const chosen = count ? await draw(fitting.filter((found) => isScored(found, names)), Number(count), number) : fitting;
    if (!chosen.length) throw new Error("no output in this file has a metric to rate");
    return {
      draw: count ? `seed ${number}` : "",
      metrics: metrics.filter((item) => names.includes(item.name)).map((item) => ({ ...item, scale: this.#scaleOf(item.name, asked) })),
      outputs: chosen.flatMap((found) => names.filter((name) => found.metrics[name]).map((name) => this.#output(found, name, annotator))),
    };
  }

  #scaleOf(name, asked) {
    const known = this.#scales.get(name);
    if (asked && !(asked[0] < asked[1])) throw new Error("put the lowest label first, for example 1,5");
    if (known && asked && known.join() !== asked.join()) throw new Error(`labels of ${name} from ${known.join(" to ")} are already in this page; a metric has only one scale`);
    return known ?? asked ?? [0, 1];
  }

  #output(found, metric, annotator) {
    const row = this.#rows.get(JSON.stringify([idOf(found), metric, annotator]));
    return { id: idOf(found), metric, found, label: row?.label ?? null, note: row?.note ?? "" };
  }

  /** The output, and what was asked, from the page of its case; the judge's verdict when it was rated or is asked for. */
  async show(output, { annotator, verdict }) {
    const page = (await load(`#case=${output.found.at.join(".")}`)).found;
    const { label, note } = this.#output(output.found, output.metric, annotator);
    const parts = ["prompt", "variables", "output"].flatMap((name) => [...page.querySelectorAll(`[data-part="${name}"]`)]);
    const shown = make("div", { class: "rated" }, ...parts);
    const hasVerdict = verdict || label !== null;
    if (hasVerdict) shown.append(this.#verdict(page, output.metric));
    return { element: shown, title: page.querySelector("#case-title").textContent.trim().replace(/\s+/g, " "), label, note, hasVerdict };
  }

  #verdict(page, metric) {
    const own = [...page.querySelectorAll("[data-assertion-metric]")].filter((item) => item.dataset.assertionMetric === metric);
    return make("section", { class: "rated-part rated-verdict", "data-rated-verdict": "", "aria-label": "The judge's verdict" }, ...own);
  }

  async keep(output, { label, note, annotator, scale, draw: drawn }) {
    const { found } = output;
    const [prompt, provider] = columns[found.at[2]] ?? [];
    const row = {
      id: output.id,
      metric: output.metric,
      label,
      scale: scale[0] === 0 && scale[1] === 1 ? null : scale,
      annotator,
      note,
      draw: drawn,
      run_id: runId,
      output_sha256: found.sha,
      test_key: found.test,
      prompt,
      provider,
      repeat: found.at[1] + 1,
      doc: found.meta.doc?.length === 1 ? found.meta.doc[0] : null,
    };
    const said = Object.entries(row).filter(([, value]) => value !== null && value !== undefined && value !== "");
    this.#scales.set(output.metric, scale);
    this.#rows.set(JSON.stringify([output.id, output.metric, annotator]), Object.fromEntries(said));
    this.#isDownloaded = false;
    for (const button of root.querySelectorAll("[data-label-download]")) button.disabled = false;
  }

  /** Give the labels as a file, a line each, as `geval agree` and `geval label --import` read it. */
  download() {
    const text = [...this.#rows.values()].map((row) => `${JSON.stringify(row)}\n`).join("");
    offerFile(`labels-${runId}.jsonl`, "application/jsonl", [text]);
    this.#isDownloaded = true;
  }

  leave() {
    root.hidden = true;
    main.classList.remove("is-labelling");
    opener.focus();
  }

  endText() {
    return "Your labels exist only in this page: download them before you close it.";
  }

  endLinks() {
    const button = makeButton("Download the labels", () => this.download(), "button is-primary");
    button.disabled = !this.#rows.size;
    return [button];
  }
}

if (metrics.length && typeof DecompressionStream !== "undefined") {
  const source = new ReportLabels();
  const rating = rateOutputs(root, source);
  opener.hidden = false;
  opener.addEventListener("click", () => {
    main.classList.add("is-labelling");
    root.hidden = false;
    rating.begin();
  });
  root.querySelector("[data-label-close]").addEventListener("click", () => source.leave());
  root.querySelector("[data-label-download]").addEventListener("click", () => source.download());
}
