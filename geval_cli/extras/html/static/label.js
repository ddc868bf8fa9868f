// Outputs rated one after the other, by key or by button. Which outputs there are, and where labels are kept, is up to
// the source: the server's (label-server.js), or that of an open report.

import { announce, keep, kept, make, makeButton } from "./page.js";

const NAME_KEPT = "geval-annotator";
const LARGEST_KEY = 9;

const isUnit = ([low, high]) => low === 0 && high === 1;
const isKeyed = ([low, high]) => Number.isInteger(low) && Number.isInteger(high) && low >= 0 && high <= LARGEST_KEY;

/** The labels of a scale that have a key or a button of their own: [key, words, label]. */
function choicesOf(scale) {
  if (isUnit(scale)) return [["p", "Pass", "pass"], ["f", "Fail", "fail"]];
  if (!isKeyed(scale)) return [];
  return Array.from({ length: scale[1] - scale[0] + 1 }, (_, step) => [`${scale[0] + step}`, "", scale[0] + step]);
}

// What would hide, reorder or end the text around it is written out; joiners within words and emoji stay.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** A text of a judge or a config as it can be shown. */
const visible = (text) => text.replace(HIDDEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Let a person rate the outputs that a source gives. Begins when `begin` of what it returns is called. */
export function rateOutputs(root, source) {
  return new Rating(root, source);
}

class Rating {
  #root;
  #source;
  #sheet = null;
  #place = -1;
  #trail = [];
  #isBusy = false;
  #choice = 0; // the number of the choice that is shown: what was under way for an earlier one is dropped

  constructor(root, source) {
    this.#root = root;
    this.#source = source;
    this.#bindChoice();
    this.#bindRating();
  }

  #part(name) {
    return this.#root.querySelector(`[data-${name}]`);
  }

  get #output() {
    return this.#sheet.outputs[this.#place];
  }

  get #scale() {
    return this.#sheet.metrics.find((metric) => metric.name === this.#output.metric).scale;
  }

  /** Load the outputs of the choice in the form and show the first that waits; `at` is the id of the one to begin with. */
  async begin(at = "") {
    const choice = this.choice();
    const number = ++this.#choice;
    this.#isBusy = false;
    this.#say("");
    this.#describeChoice();
    this.annotator = choice.annotator;
    // The output of an earlier choice would be rated in the new one's name.
    this.#part("rating").hidden = true;
    this.#part("label-end").hidden = true;
    this.#part("label-progress").textContent = "";
    let sheet;
    try {
      sheet = await this.#source.sheet(choice);
    } catch (error) {
      if (number === this.#choice) this.#say(error.message);
      return;
    }
    if (number !== this.#choice) return;
    this.#sheet = sheet;
    this.#trail = [];
    const here = this.#sheet.outputs.filter((output) => at && output.id === at);
    const first = here.find((output) => output.label === null) ?? here[0];
    if (first) await this.#show(this.#sheet.outputs.indexOf(first));
    else await this.#next(-1);
  }

  // The choice of outputs

  #bindChoice() {
    const form = this.#part("label-choice");
    for (const [name, value] of Object.entries(this.#source.asked?.() ?? {})) {
      const field = form.elements[name];
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) {
        field.add(new Option(value, value));
      }
      field.value = value;
    }
    form.elements.annotator.value = kept(NAME_KEPT) ?? "";
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keep(NAME_KEPT, form.elements.annotator.value.trim());
      this.#part("label-settings").open = false;
      this.begin();
    });
    this.#part("label-settings").hidden = false;
    this.#part("label-settings").open = !kept(NAME_KEPT);
  }

  #describeChoice() {
    const { annotator, metric, draw, scale } = this.choice();
    const parts = [visible(annotator) || "no name", visible(metric) || "all metrics", draw ? `${draw} outputs` : "all outputs", scale || "pass or fail"];
    this.#part("label-summary").textContent = parts.join(" · ");
  }

  /** The outputs that the form asks for, and who is to rate them. */
  choice() {
    const read = (name) => this.#part("label-choice").elements[name].value.trim();
    const [metric, draw, seed, annotator] = ["metric", "draw", "seed", "annotator"].map(read);
    return { metric, draw, seed, annotator, scale: read("scale").replace(/\s/g, "") };
  }

  // One output

  /** Show the next output behind `place` that waits for a label; at the end, say so. */
  async #next(place) {
    const { outputs } = this.#sheet;
    let next = place + 1;
    while (next < outputs.length && outputs[next].label !== null) next += 1;
    if (next >= outputs.length) this.#showEnd();
    else await this.#show(next, { passesOver: true });
  }

  /** With `passesOver`, go on when the output was rated meanwhile: the same person may have another window open. */
  async #show(place, { verdict = false, passesOver = false } = {}) {
    const number = this.#choice;
    const output = this.#sheet.outputs[place];
    let shown;
    this.#isBusy = true;
    try {
      shown = await this.#source.show(output, { annotator: this.annotator, verdict });
    } catch (error) {
      if (number === this.#choice) this.#say(error.message);
      return;
    } finally {
      if (number === this.#choice) this.#isBusy = false;
    }
    if (number !== this.#choice) return;
    if (shown.label !== null) {
      output.label = shown.label;
      output.note = shown.note;
      if (passesOver) {
        await this.#next(place);
        return;
      }
    }
    this.#place = place;
    this.#draw(shown, { keepsNote: verdict });
  }

  #draw(shown, { keepsNote }) {
    const output = this.#output;
    const { outputs } = this.#sheet;
    this.#say("");
    this.#part("rating-place").textContent = `${(this.#place + 1).toLocaleString("en")} of ${outputs.length.toLocaleString("en")}`;
    this.#part("rating-metric").textContent = visible(output.metric);
    this.#part("rating-title").textContent = shown.title;
    this.#part("rating-body").replaceChildren(shown.element);
    if (!keepsNote) this.#part("rating-note").value = output.note;
    this.#drawCriteria();
    this.#drawChoices();
    this.#drawProgress();
    this.#part("label-end").hidden = true;
    const rating = this.#part("rating");
    rating.hidden = false;
    rating.focus({ preventScroll: true });
    if (!keepsNote && rating.getBoundingClientRect().top < 0) rating.scrollIntoView({ block: "start" });
    this.#part("rating-body").querySelector("[data-rated-verdict]")?.scrollIntoView({ block: "nearest" });
    this.#root.querySelector('[data-rating-act="back"]').disabled = !this.#trail.length;
    this.#root.querySelector('[data-rating-act="verdict"]').disabled = shown.hasVerdict;
    this.#source.remember?.(this.choice(), this.#output?.id ?? "");
  }

  #drawCriteria() {
    const { criteria, steps } = this.#sheet.metrics.find((metric) => metric.name === this.#output.metric);
    this.#part("rating-criteria").hidden = !criteria && !steps.length;
    this.#part("rating-words").textContent = visible(criteria);
    this.#part("rating-steps").replaceChildren(...steps.map((step) => make("li", { dir: "auto" }, visible(step))));
  }

  #drawChoices() {
    const scale = this.#scale;
    const choices = choicesOf(scale);
    const { label } = this.#output;
    const buttons = choices.map(([key, words, value]) => {
      const button = make("button", { type: "button", class: "button rating-choice", "aria-pressed": String(label === value), "data-label": key });
      if (typeof value === "string") button.classList.add(`is-${value}`);
      button.append(make("kbd", {}, key), ...(words ? [words] : []));
      button.addEventListener("click", () => this.#rate(value));
      return button;
    });
    if (!choices.length) buttons.push(...this.#numberField(scale, label));
    this.#part("rating-choices").replaceChildren(...buttons);
    const keys = isUnit(scale) ? "p pass, f fail" : choices.length ? `${scale[0]} to ${scale[1]} rate` : "a number and Enter rates";
    this.#part("rating-keys").textContent = `Keys: ${keys}, s skips, b goes back, n adds a note (Esc closes it), v shows the verdict, q leaves.`;
  }

  #numberField([low, high], label) {
    const words = `${low} to ${high}`;
    const field = make("input", { class: "input", inputmode: "decimal", placeholder: words, "aria-label": `Your rating, ${words}`, "data-number": "", autocomplete: "off" });
    field.value = label ?? "";
    return [field, make("button", { type: "submit", class: "button" }, "Rate")];
  }

  #drawProgress() {
    const { outputs, draw } = this.#sheet;
    const done = outputs.filter((output) => output.label !== null).length;
    const who = this.annotator ? ` by ${this.annotator}` : "";
    this.#part("label-progress").textContent = `${done.toLocaleString("en")} of ${outputs.length.toLocaleString("en")} rated${who}${draw ? `, drawn with ${draw}` : ""}`;
  }

  // What a person does

  #bindRating() {
    const rating = this.#part("rating");
    const note = this.#part("rating-note");
    rating.addEventListener("keydown", (event) => this.#press(event));
    this.#part("rating-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#rateNumber();
    });
    for (const button of this.#root.querySelectorAll("[data-rating-act]")) {
      button.addEventListener("click", () => this.#act(button.dataset.ratingAct));
    }
    note.addEventListener("change", () => this.#keepNote());
  }

  #press(event) {
    event.stopPropagation(); // other keys of the page are not meant here
    if (event.isComposing) return;
    const isTyped = event.target.matches("input, textarea, select");
    if (isTyped && (event.key === "Escape" || (event.key === "Enter" && event.ctrlKey))) {
      event.preventDefault();
      this.#part("rating").focus({ preventScroll: true });
      return;
    }
    if (isTyped || event.altKey || event.ctrlKey || event.metaKey) return;
    const acts = { s: "skip", b: "back", v: "verdict", n: "note", q: "leave" };
    if (acts[event.key]) {
      event.preventDefault();
      this.#act(acts[event.key]);
      return;
    }
    this.#pressLabel(event);
  }

  #pressLabel(event) {
    const chosen = choicesOf(this.#scale).find(([key]) => key === event.key);
    const number = this.#part("number");
    if (chosen) {
      event.preventDefault();
      this.#rate(chosen[2]);
    } else if (number && /^[-.0-9]$/.test(event.key)) {
      number.value = "";
      number.focus(); // the key itself is typed there
    }
  }

  async #act(name) {
    const number = this.#choice;
    if (this.#isBusy) return;
    if (name === "note") this.#part("rating-note").focus();
    else if (name === "verdict") await this.#show(this.#place, { verdict: true });
    else if (!(await this.#keepNote()) || number !== this.#choice) return;
    else if (name === "leave") this.#source.leave();
    else if (name === "skip") await this.#goOn();
    else if (this.#trail.length) await this.#show(this.#trail.pop());
  }

  /** Go to the next output that waits; what is rated already is passed over. */
  async #goOn() {
    this.#trail.push(this.#place);
    await this.#next(this.#place);
  }

  async #rateNumber() {
    const field = this.#part("number");
    if (!field) return;
    const [low, high] = this.#scale;
    const label = Number(field.value.trim().replace(",", "."));
    if (!field.value.trim() || !(label >= low && label <= high)) {
      this.#say(`${field.value.trim() || "Nothing"} is not a label from ${low} to ${high}.`);
      field.setAttribute("aria-invalid", "true");
      return;
    }
    await this.#rate(label);
  }

  async #rate(label) {
    const number = this.#choice;
    if (this.#isBusy || !(await this.#keep(label))) return;
    announce(`Kept: ${label}.`);
    if (number === this.#choice) await this.#goOn();
  }

  /** Keep a note that was changed beside a label that is there; true unless that failed. */
  async #keepNote() {
    const output = this.#output;
    const note = this.#part("rating-note").value.trim();
    if (note === output.note) return true;
    if (output.label !== null) return this.#keep(output.label);
    output.note = note; // kept with the label, once there is one
    return true;
  }

  async #keep(label) {
    const number = this.#choice;
    const output = this.#output;
    const note = this.#part("rating-note").value.trim();
    this.#isBusy = true;
    try {
      await this.#source.keep(output, { label, note, annotator: this.annotator, scale: this.#scale, draw: this.#sheet.draw });
    } catch (error) {
      this.#say(`Not kept: ${error.message}`);
      return false;
    } finally {
      if (number === this.#choice) this.#isBusy = false;
    }
    Object.assign(output, { label, note });
    if (number === this.#choice) this.#drawProgress();
    return true;
  }

  // The end, and what goes wrong

  #showEnd() {
    const { outputs } = this.#sheet;
    const left = outputs.filter((output) => output.label === null);
    this.#part("rating").hidden = true;
    this.#part("label-end-title").textContent = left.length ? "That was the last output" : "All outputs are rated";
    this.#part("label-end-text").textContent = left.length
      ? `${left.length.toLocaleString("en")} of ${outputs.length.toLocaleString("en")} were skipped.`
      : this.#source.endText();
    const again = makeButton("Go through the skipped ones", () => { this.#trail = []; this.#next(-1); });
    this.#part("label-end-links").replaceChildren(...(left.length ? [again] : []), ...this.#source.endLinks());
    this.#place = -1;
    this.#drawProgress();
    this.#source.remember?.(this.choice(), this.#output?.id ?? "");
    const end = this.#part("label-end");
    end.hidden = false;
    end.focus();
  }

  #say(text) {
    this.#part("label-problem-text").textContent = text;
    this.#part("label-problem").hidden = !text;
  }
}
