// The assertions of one test as forms, made of what the server knows of each type. The YAML beside them is what counts:
// a change in a form is made in the YAML by the server, which keeps every other byte of it.

import { announce } from "./page.js";
import { send } from "./editor-server.js";

const CHANGE_AFTER_MS = 250;
const READ_AFTER_MS = 400;

const busy = new Set();
let known = null;
let lastId = 0;

/** Whether something that was typed in a form is not in its YAML yet. */
export function isUnsettled() {
  return busy.size > 0;
}

/** Wait until every change that was made in a form is in its YAML. */
export async function settled() {
  while (busy.size) await Promise.all([...busy].map((forms) => forms.settle()));
}

async function loadKinds() {
  known ??= fetch("/suites/assertions", { headers: { accept: "application/json" } }).then((answer) => answer.json());
  const { kinds, often_used: oftenUsed } = await known;
  return { kinds, oftenUsed, byType: new Map(kinds.map((kind) => [kind.type, kind])) };
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== false) made.setAttribute(key, value === true ? "" : value);
  made.append(...children);
  return made;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

function button(label, act, { kind = "", sign = "", hidden = "" } = {}) {
  const made = element("button", { type: "button", class: `button ${kind}` });
  if (sign) made.append(icon(sign));
  made.append(hidden ? element("span", { class: "visually-hidden" }, hidden) : label);
  made.addEventListener("click", act);
  return made;
}

// Inputs: each has `read()`, what it holds now, and `show(value)`

function textInput(kind, value, isLong) {
  const isLine = kind === "number" || kind === "numbers" || (kind === "text" && !isLong && !String(value ?? "").includes("\n"));
  const input = isLine ? element("input", { class: "input", autocomplete: "off", dir: "auto" }) : element("textarea", { class: "textarea", rows: "2", dir: "auto" });
  if (kind === "number" || kind === "numbers") input.inputMode = "decimal";
  if (kind === "yaml") {
    input.classList.add("mono");
    input.wrap = "off";
    input.spellcheck = false;
  }
  const show = (shown) => {
    const text = shown ?? "";
    if (input.value !== text) input.value = text;
    if (!isLine) input.rows = Math.min(14, Math.max(2, input.value.split("\n").length));
  };
  return { element: input, focusable: input, read: () => input.value || null, show };
}

function flagInput(entry) {
  const input = element("input", { type: "checkbox" });
  const show = (value) => { input.checked = value ?? entry.default ?? false; };
  return { element: input, focusable: input, read: () => (input.checked === (entry.default ?? false) ? null : input.checked), show };
}

function choiceInput(entry) {
  const input = element("select", { class: "select" }, new Option("–", ""), ...entry.choices.map((word) => new Option(word, word)));
  const show = (value) => {
    if (value && ![...input.options].some((option) => option.value === value)) input.add(new Option(value, value));
    input.value = value ?? "";
  };
  return { element: input, focusable: input, read: () => input.value || null, show };
}

function pairsInput(entry, onChange) {
  const rows = element("div", { class: "pair-rows" });
  const box = element("div", { class: "pairs" }, rows);
  const addRow = (name = "", text = "") => {
    const number = rows.children.length + 1;
    const key = element("input", { class: "input mono", "aria-label": `${entry.label}, ${number}: which`, autocomplete: "off" });
    const said = element("input", { class: "input", "aria-label": `${entry.label}, ${number}: text`, autocomplete: "off", dir: "auto" });
    const row = element("div", { class: "pair-row" }, key, said);
    row.append(button("", () => { row.remove(); onChange(); }, { kind: "is-quiet is-icon", sign: "close", hidden: `Remove row ${number}` }));
    [key.value, said.value] = [name, text];
    rows.append(row);
    return key;
  };
  const add = button("Add a row", () => addRow().focus(), { kind: "is-quiet", sign: "plus" });
  box.append(add);
  const read = () => [...rows.children].map((row) => [...row.querySelectorAll("input")].map((input) => input.value)).filter(([name, text]) => name || text);
  const show = (value) => {
    if (JSON.stringify(read()) === JSON.stringify(value ?? [])) return;
    rows.replaceChildren();
    for (const [name, text] of value ?? []) addRow(name, text);
  };
  return { element: box, focusable: add, read: () => (read().length ? read() : null), show };
}

function makeInput(kind, entry, value, onChange) {
  if (kind === "flag") return flagInput(entry);
  if (kind === "choice") return choiceInput(entry);
  if (kind === "pairs") return pairsInput(entry, onChange);
  return textInput(kind, value, ["criteria", "value", "transform"].includes(entry.key));
}

export class AssertionForms {
  #place;
  #yaml;
  #controls = new Map();
  #timers = new Map();
  #chain = Promise.resolve();
  #shape = null;
  #problems = [];
  #isOwn = false;
  #readTimer = 0;

  /** `place` is where the forms go, `yaml` the field whose text they show. */
  constructor(place, yaml) {
    this.#place = place;
    this.#yaml = yaml;
    this.#list = element("div", { class: "assertion-list" });
    this.#note = element("p", { class: "field-problem is-error", role: "status", hidden: true });
    place.replaceChildren(this.#note, this.#list);
    yaml.addEventListener("input", () => {
      if (this.#isOwn) return;
      clearTimeout(this.#readTimer);
      this.#readTimer = setTimeout(() => this.refresh(), READ_AFTER_MS);
    });
  }

  #list;
  #note;

  /** Show what the YAML says now. */
  refresh() {
    return this.#queue(() => this.#send(null));
  }

  /** Make what was typed a change at once, and wait until it is in the YAML. */
  async settle() {
    for (const commit of [...this.#timers.values()]) commit.now();
    await this.#chain;
  }

  #queue(work) {
    busy.add(this);
    this.#chain = this.#chain.then(work).finally(() => {
      if (!this.#timers.size) busy.delete(this);
    });
    return this.#chain;
  }

  async #send(change, control = null) {
    const text = this.#yaml.value;
    const answer = await send("/suites/assertions", change ? { text, change } : { text });
    if (change && this.#yaml.value !== text) { // typed there meanwhile: make the change in that
      await this.#send(change, control);
      return;
    }
    if (!answer.ok) {
      this.#refuse(answer, control);
      return;
    }
    this.#note.hidden = true;
    if (control) control.say([]);
    if (change && answer.body.text !== text) {
      this.#isOwn = true;
      this.#yaml.value = answer.body.text;
      this.#yaml.dispatchEvent(new Event("input", { bubbles: true }));
      this.#isOwn = false;
    }
    await this.#draw(answer.body.assertions);
  }

  #refuse(answer, control) {
    const { body } = answer;
    const [first] = body.errors ?? [];
    const words = first ? `${first.detail}${first.line ? ` (line ${first.line}, column ${first.column})` : ""}` : body.detail;
    const hint = first?.hint ?? body.hint;
    const text = hint ? `${words}: ${hint}` : words;
    if (control) {
      control.say([text]);
      return;
    }
    this.#note.textContent = answer.status === 422 ? `The form comes back when the YAML can be read: ${text}` : text;
    this.#note.hidden = false;
    this.#list.replaceChildren();
    this.#shape = null;
  }

  #change(change, control = null) {
    return this.#queue(() => this.#send(change, control));
  }

  /** What was typed becomes a change after a moment, so that not every letter is one. */
  #later(name, work) {
    clearTimeout(this.#timers.get(name)?.timer);
    const now = () => {
      clearTimeout(this.#timers.get(name)?.timer);
      this.#timers.delete(name);
      work();
    };
    busy.add(this);
    this.#timers.set(name, { timer: setTimeout(now, CHANGE_AFTER_MS), now });
  }

  // Drawing

  async #draw(assertions) {
    const { kinds, oftenUsed, byType } = await loadKinds();
    const kindsOf = (form) => (byType.get(form.type)?.inputs ?? []).map((entry) => form.values[entry.key]?.kind ?? entry.kind);
    const shape = JSON.stringify(assertions.map((form) => [form.type, form.left_over, kindsOf(form)]));
    if (shape !== this.#shape) {
      this.#shape = shape;
      const focused = document.activeElement?.closest("[data-path]")?.dataset.path;
      this.#controls.clear();
      const made = assertions.map((form, index) => this.#makeForm(form, index, { kinds, oftenUsed, kind: byType.get(form.type) }));
      this.#list.replaceChildren(...made, this.#makeAdder({ kinds, oftenUsed }));
      this.#list.querySelector(`[data-path="${focused}"]`)?.querySelector("input, select, textarea, button")?.focus();
    }
    assertions.forEach((form, index) => this.#show(form, index));
    this.showProblems(this.#problems);
  }

  #show(form, index) {
    for (const [path, control] of this.#controls) {
      if (control.index !== index || control.box.contains(document.activeElement) || this.#timers.has(path)) continue;
      control.show(form.values[control.key]?.value ?? null);
    }
    const negated = this.#list.querySelector(`[data-negated="${index}"]`);
    if (negated) negated.checked = form.is_negated;
  }

  #typeSelect({ kinds, oftenUsed }, label, chosen = "") {
    const select = element("select", { class: "select", "aria-label": label });
    const group = (name, listed) => element("optgroup", { label: name }, ...listed.map((kind) => new Option(kind.type, kind.type)));
    select.append(group("Often used", kinds.slice(0, oftenUsed)), group("All others", kinds.slice(oftenUsed)));
    if (chosen) select.value = chosen;
    return select;
  }

  #makeAdder(choices) {
    const select = this.#typeSelect(choices, "Type of the new assertion");
    const add = button("Add an assertion", async () => {
      await this.#change({ type: select.value });
      this.#list.querySelector(".assertion-form:last-of-type [data-path] :is(input, select, textarea, button)")?.focus();
      announce(`Added ${select.value}.`);
    }, { sign: "plus" });
    return element("div", { class: "assertion-adder" }, select, add);
  }

  #makeForm(form, index, choices) {
    const number = index + 1;
    const box = element("section", { class: "assertion-form", "aria-label": `Assertion ${number}` });
    if (!choices.kind) {
      const what = form.type ? `${form.type} is no type of assertion that this editor knows.` : "This assertion has a form that only its YAML shows.";
      box.append(element("p", { class: "muted" }, what));
      return box;
    }
    const type = this.#typeSelect(choices, `Type of assertion ${number}`, form.type);
    const negated = element("input", { type: "checkbox", "data-negated": index });
    const retype = () => this.#change({ index, type: (negated.checked ? "not-" : "") + type.value });
    type.addEventListener("change", retype);
    negated.addEventListener("change", retype);
    const remove = button("", () => this.#change({ index, is_removed: true }), { kind: "is-quiet is-icon", sign: "trash", hidden: `Delete assertion ${number}` });
    const typePlace = element("span", { "data-path": `${index}:type` }, type);
    box.append(element("div", { class: "assertion-form-head" }, typePlace, element("label", { class: "assertion-not" }, negated, "not"), remove));
    box.append(element("p", { class: "hint" }, choices.kind.about.replaceAll("`", "")));
    box.append(element("div", { class: "field-problems", "data-about": index, "aria-live": "polite" }));
    if (form.left_over.length) box.append(this.#leftOver(form, index));
    const first = choices.kind.inputs.filter((entry) => entry.is_first || form.values[entry.key]);
    const rest = choices.kind.inputs.filter((entry) => !first.includes(entry));
    box.append(...first.map((entry) => this.#makeControl(form, index, entry)));
    if (rest.length) {
      box.append(element("details", { class: "more" }, element("summary", {}, "More settings"), ...rest.map((entry) => this.#makeControl(form, index, entry))));
    }
    return box;
  }

  #leftOver(form, index) {
    const keys = form.left_over.map((key) => `“${key}”`).join(", ");
    const words = element("p", { dir: "auto" }, `${keys} ${form.left_over.length > 1 ? "mean" : "means"} nothing to ${form.type}.`);
    const drop = button(form.left_over.length > 1 ? "Remove them" : "Remove it", () => this.#change({ index, drop: form.left_over }));
    return element("div", { class: "note is-warning assertion-left-over", role: "status" }, words, drop);
  }

  #makeControl(form, index, entry) {
    const path = `${index}:${entry.key}`;
    const kind = form.values[entry.key]?.kind ?? entry.kind;
    const commit = () => this.#change({ index, key: entry.key, kind, value: control.read() }, control);
    const control = makeInput(kind, entry, form.values[entry.key]?.value, commit);
    lastId += 1;
    const id = `assertion-input-${lastId}`;
    control.focusable.id = id;
    const label = element("label", { for: id }, entry.label);
    const hint = element("p", { class: "hint", id: `${id}-hint` }, [entry.hint.replaceAll("`", ""), kind === "texts" ? "One a line." : "", kind === "texts" && entry.choices.length ? `One of ${entry.choices.join(", ")}.` : ""].filter(Boolean).join(" "));
    const problems = element("div", { class: "field-problems", id: `${id}-problems`, "aria-live": "polite" });
    control.focusable.setAttribute("aria-describedby", `${id}-problems ${id}-hint`);
    const box = element("div", { class: `field is-${kind}`, "data-path": path }, label, control.element, problems, hint);
    if (kind === "yaml") label.append(" ", element("span", { class: "chip" }, "YAML"));
    control.element.addEventListener("input", () => this.#later(path, commit));
    control.element.addEventListener("change", () => this.#timers.get(path)?.now());
    const say = (texts) => {
      problems.replaceChildren(...texts.map((text) => element("p", { class: "field-problem is-error" }, text)));
      if (texts.length) control.focusable.setAttribute("aria-invalid", "true");
      else control.focusable.removeAttribute("aria-invalid");
    };
    Object.assign(control, { index, key: entry.key, box, say });
    this.#controls.set(path, control);
    control.show(form.values[entry.key]?.value ?? null);
    return box;
  }

  /** Bring the input that a problem is about into view; the assertion where it is about none. */
  async goTo(problem) {
    await this.settle();
    const control = this.#controls.get(`${problem.assertion}:${problem.key}`);
    const place = control?.box ?? this.#list.children[problem.assertion] ?? this.#yaml;
    place.closest("details")?.setAttribute("open", "");
    place.scrollIntoView({ block: "center" });
    (control?.focusable ?? place.querySelector("select") ?? this.#yaml).focus({ preventScroll: true });
  }

  /** Say beside its input what the check of the suite found; what is about no input, under the type. */
  showProblems(problems) {
    this.#problems = problems;
    const texts = (found) => found.map((problem) => [problem.message, problem.hint].filter(Boolean).join(": "));
    const isShown = new Set();
    for (const control of this.#controls.values()) {
      const here = problems.filter((problem) => problem.assertion === control.index && problem.key === control.key);
      here.forEach((problem) => isShown.add(problem));
      control.say(texts(here));
      if (here.length) control.box.closest("details")?.setAttribute("open", "");
    }
    for (const place of this.#list.querySelectorAll("[data-about]")) {
      const here = problems.filter((problem) => problem.assertion === Number(place.dataset.about) && !isShown.has(problem));
      place.replaceChildren(...texts(here).map((text) => element("p", { class: "field-problem is-error" }, text)));
    }
  }
}
