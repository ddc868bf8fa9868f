// The form beside the YAML: prompts, providers and tests as fields. Each change is a change of the text, which stays
// the one thing that is saved; what the form has no field for stands in the YAML alone.

import { make } from "./page.js";

const TESTS_A_PAGE = 20;
const MODES = [["", "None: assertions only"], ["llm", "llm: a judge, by criteria"], ["schema", "schema: each test's JSON Schema"]];
const BODIES = { raw: "Prompt", system: "System message, the test's input as user message" };
const G_EVAL = ["type: g-eval", "criteria: The answer is correct.", "threshold: 0.5"];

function icon(name) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  made.setAttribute("class", "icon");
  made.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  made.append(use);
  return made;
}

const keyPath = (path) => path.reduce((text, key) => (typeof key === "number" ? `${text}[${key}]` : text ? `${text}.${key}` : key), "");
const shown = (value) => (value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));
const isText = (value) => typeof value !== "object" || value === null;

export class Form {
  #root;
  #suite = null;
  #change;
  #goTo;
  #page = 0;
  #fields = [];
  #made = "";
  #open = new Set();
  #problems = [];

  /** `change` takes a change of the text, `goTo` shows a place of it. */
  constructor(root, { change, goTo }) {
    this.#root = root;
    this.#change = change;
    this.#goTo = goTo;
  }

  /** Show a suite; null for a text that cannot be read now, beside which the form waits. */
  show(suite) {
    this.#root.inert = !suite;
    this.#root.classList.toggle("is-waiting", !suite);
    if (!suite) return;
    this.#suite = suite;
    const shape = this.#shape();
    if (shape !== this.#made) this.#build(shape);
    for (const field of this.#fields) field.show();
    this.#drawProblems();
  }

  /** Say at each field what is wrong with it. */
  showProblems(problems) {
    this.#problems = problems;
    this.#drawProblems();
  }

  /** Whether some field holds what the text cannot take. */
  get broken() {
    return this.#fields.find((field) => field.isBroken)?.input ?? null;
  }

  /** What decides which fields there are; while it stays, typing changes no element. */
  #shape() {
    const suite = this.#suite;
    const prompts = Array.from({ length: suite.count("prompts") }, (_, index) => [this.#body(index), Boolean(suite.value(["prompts", index, "evaluation_criteria"])), suite.value(["prompts", index, "evaluation_mode"]) ?? ""]);
    const tests = this.#tests().map((index) => [index, isText(suite.value(["tests", index])), Object.keys(suite.value(["tests", index, "vars"]) ?? {}), this.#assertions(index), suite.value(["tests", index, "evaluation_schema"]) !== undefined]);
    return JSON.stringify([prompts, suite.count("providers"), suite.count("tests"), tests, this.#page]);
  }

  #tests() {
    const count = this.#suite.count("tests");
    this.#page = Math.max(0, Math.min(this.#page, Math.ceil(count / TESTS_A_PAGE) - 1));
    return Array.from({ length: Math.min(TESTS_A_PAGE, count - this.#page * TESTS_A_PAGE) }, (_, place) => this.#page * TESTS_A_PAGE + place);
  }

  #body(index) {
    const prompt = this.#suite.value(["prompts", index]);
    if (isText(prompt)) return typeof prompt === "string" && prompt.startsWith("file://") ? "file" : "short";
    return Array.isArray(prompt) ? "messages" : Object.keys(BODIES).find((key) => key in prompt) ?? "messages";
  }

  #assertions(index) {
    const found = this.#suite.value(["tests", index, "assert"]) ?? this.#suite.value(["tests", index, "assertions"]) ?? [];
    return Array.isArray(found) ? found.map((item) => [item?.type, item?.metric].filter(Boolean).join(" ")) : [];
  }

  #build(shape) {
    const focused = this.#root.contains(document.activeElement) ? document.activeElement.dataset.path : null;
    const at = focused ? [document.activeElement.selectionStart, document.activeElement.selectionEnd] : null;
    this.#made = shape;
    this.#fields = [];
    this.#root.replaceChildren(
      this.#field(["description"], "Description"),
      this.#section("prompts", "Prompts", "Add a prompt", (index) => this.#prompt(index)),
      this.#section("providers", "Providers", "Add a provider", (index) => this.#provider(index)),
      this.#section("tests", "Tests", "Add a test", (index) => this.#test(index), this.#tests()),
    );
    const back = focused && this.#root.querySelector(`[data-path="${CSS.escape(focused)}"]`);
    if (!back) return;
    back.focus({ preventScroll: true });
    if (at[0] !== undefined && at[0] !== null && back.setSelectionRange) back.setSelectionRange(...at);
  }

  #section(name, title, add, card, indexes = Array.from({ length: this.#suite.count(name) }, (_, index) => index)) {
    const count = this.#suite.count(name);
    const value = this.#suite.value([name]);
    const section = make("section", { "aria-labelledby": `form-${name}`, "data-items": name });
    section.append(make("h2", { id: `form-${name}` }, title, " ", make("span", { class: "muted" }, count.toLocaleString("en"))));
    const isElsewhere = name === "tests" && isText(value) && value;
    if (isElsewhere) section.append(make("p", { class: "note" }, `The tests are in a separate file: ${value}`));
    section.append(...indexes.map(card));
    if (count > indexes.length) section.append(this.#pager(count));
    if (!isElsewhere) section.append(this.#button(add, "plus", () => this.#add(name), "button"));
    return section;
  }

  #pager(count) {
    const turn = (steps) => { this.#page += steps; this.show(this.#suite); };
    const back = this.#button("Previous", "left", () => turn(-1));
    const on = this.#button("Next", "right", () => turn(1));
    back.disabled = this.#page === 0;
    on.disabled = (this.#page + 1) * TESTS_A_PAGE >= count;
    const words = `${(this.#page * TESTS_A_PAGE + 1).toLocaleString("en")} to ${Math.min(count, (this.#page + 1) * TESTS_A_PAGE).toLocaleString("en")}`;
    return make("nav", { class: "pages", "aria-label": "Pages of tests" }, back, make("span", { class: "muted" }, words), on);
  }

  #button(words, name, act, kind = "button is-quiet") {
    const button = make("button", { type: "button", class: kind }, ...(name ? [icon(name)] : []), words);
    button.addEventListener("click", act);
    return button;
  }

  /** The head of an item: its name, a way into its YAML, and what can be done with the whole of it. */
  #acts(name, index, what) {
    const quiet = (words, sign, act) => {
      const button = this.#button("", sign, act, "button is-quiet is-icon");
      button.append(make("span", { class: "visually-hidden" }, `${words} ${what} ${index + 1}`));
      button.title = words;
      return button;
    };
    const inYaml = this.#button("YAML", "", () => this.#goTo(this.#suite.place([name, index])));
    inYaml.append(make("span", { class: "visually-hidden" }, ` of ${what} ${index + 1}`));
    const list = Array.isArray(this.#suite.value([name]));
    const acts = [inYaml];
    if (list && name !== "providers") acts.push(quiet("Duplicate", "copy", () => this.#do(this.#suite.copyItem(name, index), [name, index + 1])));
    if (list) acts.push(quiet("Delete", "trash", () => this.#do(this.#suite.removeItem(name, index), [name, Math.max(0, index - 1)])));
    return make("span", { class: "item-acts" }, ...acts);
  }

  #prompt(index) {
    const path = ["prompts", index];
    const body = this.#body(index);
    const mode = this.#suite.value([...path, "evaluation_mode"]) ?? "";
    const card = make("article", { class: "card item", "data-item": keyPath(path), "aria-labelledby": `prompt-${index}` });
    card.append(make("header", { class: "item-head" }, make("h3", { id: `prompt-${index}` }, `Prompt ${index + 1}`), this.#acts("prompts", index, "prompt")));
    if (body === "messages") card.append(make("p", { class: "muted" }, "Edit chat messages in the YAML."));
    else card.append(this.#field(body in BODIES ? [...path, body] : path, BODIES[body] ?? "Prompt", { rows: 3 }));
    if (body !== "file") {
      card.append(this.#field([...path, "evaluation_mode"], "Evaluation mode", { choices: MODES }));
      if (mode === "llm" || this.#suite.value([...path, "evaluation_criteria"])) {
        card.append(this.#field([...path, "evaluation_criteria"], "Evaluation criteria", { rows: 3, hint: "What makes an answer good. If empty, answers are not evaluated." }));
      }
    }
    return card;
  }

  #provider(index) {
    const path = ["providers", index];
    const value = this.#suite.value(path);
    const card = make("article", { class: "card item is-row", "data-item": keyPath(path) });
    const isKeyed = !isText(value) && !("id" in value);
    if (isKeyed) card.append(make("p", { class: "mono" }, Object.keys(value)[0] ?? ""));
    else card.append(this.#field(isText(value) ? path : [...path, "id"], `Provider ${index + 1}`, { isOneLine: true, placeholder: "openai:gpt-4.1-mini" }));
    card.append(this.#acts("providers", index, "provider"));
    return card;
  }

  #test(index) {
    const path = ["tests", index];
    const suite = this.#suite;
    const value = suite.value(path);
    if (isText(value) && value) return make("p", { class: "note mono" }, String(value));
    const name = String(value?.description || value?.input || Object.values(value?.vars ?? {}).find(isText) || "no input yet").slice(0, 80);
    const card = make("details", { class: "card item", "data-item": keyPath(path) });
    const key = keyPath(path);
    card.open = this.#open.has(key) || suite.count("tests") === 1;
    card.addEventListener("toggle", () => (card.open ? this.#open.add(key) : this.#open.delete(key)));
    card.append(make("summary", {}, make("span", { class: "muted" }, String(index + 1)), " ", make("span", { dir: "auto", "data-name": "" }, name)));
    const fields = make("div", { class: "fields", role: "group", "aria-label": `Test ${index + 1}` }, this.#acts("tests", index, "test"), this.#field([...path, "description"], "Description"));
    card.append(fields);
    for (const variable of Object.keys(value?.vars ?? {})) {
      if (isText(value.vars[variable])) fields.append(this.#field([...path, "vars", variable], variable, { rows: 2, label: "variable" }));
    }
    if (!value?.vars || value.input !== undefined) fields.append(this.#field([...path, "input"], "Input", { rows: 3, hint: "The user message of system prompts, and {{ input }} in templates." }));
    fields.append(this.#field([...path, "expected_output"], "Expected output", { rows: 2 }));
    const usesSchemas = Array.from({ length: suite.count("prompts") }, (_, number) => suite.value(["prompts", number, "evaluation_mode"])).includes("schema");
    if (usesSchemas || value?.evaluation_schema !== undefined) fields.append(this.#field([...path, "evaluation_schema"], "Evaluation schema", { rows: 6, kind: "json", hint: "JSON Schema for answers to prompts in the mode schema, or file:// with one." }));
    fields.append(this.#assertionLine(index));
    return card;
  }

  #assertionLine(index) {
    const key = ["assert", "assertions"].find((name) => this.#suite.at(["tests", index, name])) ?? "assert";
    const line = make("div", { class: "assertion-line", role: "group", "aria-label": `Assertions of test ${index + 1}` }, make("span", { class: "label" }, "Assertions"));
    this.#assertions(index).forEach((name, number) => line.append(this.#button(name || "?", "", () => this.#goTo(this.#suite.place(["tests", index, key, number])), "chip")));
    line.append(this.#button("Add an assertion", "plus", () => this.#addAssertion(index, key)));
    return line;
  }

  #addAssertion(index, key) {
    const path = ["tests", index, key];
    const change = this.#suite.add(path, G_EVAL, { type: "g-eval", criteria: "The answer is correct.", threshold: 0.5 });
    if (!change) return;
    this.#change(change);
    const start = change.from + change.insert.indexOf("The answer is correct.");
    this.#goTo(start, start + "The answer is correct.".length);
  }

  #add(name) {
    const items = {
      prompts: [["raw: \"\""], { raw: "" }],
      providers: [['""'], ""],
      tests: [['input: ""'], { input: "" }],
    };
    const index = this.#suite.count(name);
    if (name === "tests") this.#page = Math.floor(index / TESTS_A_PAGE);
    this.#open.add(keyPath([name, index]));
    this.#do(this.#suite.add([name], ...items[name]), [name, index]);
  }

  /** Make a change, then go to the first field of an item. */
  #do(change, [name, index]) {
    if (!change) return;
    this.#open = new Set([...this.#open].filter((key) => !key.startsWith(`${name}[`)));
    this.#open.add(keyPath([name, index]));
    this.#made = "";
    this.#change(change);
    const card = this.#root.querySelector(`[data-item="${keyPath([name, index])}"]`);
    (card?.querySelector("textarea") ?? card?.querySelector("input") ?? this.#root.querySelector(`[data-items=${name}] > .button`))?.focus();
  }

  #field(path, label, { rows = 0, choices = null, hint = "", kind = "text", isOneLine = false, placeholder = null } = {}) {
    const id = `field-${keyPath(path).replaceAll(/[^\w]/g, "-")}`;
    const attributes = { id, "data-path": keyPath(path), class: choices ? "select" : rows ? "textarea" : "input", dir: "auto", autocomplete: "off", "aria-describedby": `${id}-problem`, placeholder };
    const input = choices
      ? make("select", attributes, ...choices.map(([value, words]) => make("option", { value }, words)))
      : rows ? make("textarea", { ...attributes, rows }) : make("input", attributes);
    if (kind === "json" || isOneLine) input.classList.add("mono");
    const problem = make("div", { id: `${id}-problem`, class: "field-problems", "aria-live": "polite" });
    const field = {
      path, kind, input, problem, shown: "",
      show: () => {
        const value = shown(this.#suite.value(path));
        if (input === document.activeElement && field.typed === value) return;
        if (field.isBroken && field.shown === value) return;
        field.isBroken = false;
        field.shown = value;
        if (choices && ![...input.options].some((option) => option.value === value)) input.add(new Option(value, value));
        if (input.value !== value) input.value = value;
        input.disabled = !this.#suite.canChange(path);
      },
    };
    this.#fields.push(field);
    // A space at the end of what is being typed takes quotes, which go again with the next word.
    input.addEventListener("focus", () => { field.style = input.value ? this.#suite.style(path) : "PLAIN"; });
    input.addEventListener("input", () => this.#typed(field));
    input.addEventListener("change", () => this.#settled(field));
    return make("div", { class: "field" }, make("label", { for: id }, label), input, problem, ...(hint ? [make("p", { class: "hint" }, hint)] : []));
  }

  #typed(field) {
    const value = field.input.value;
    field.typed = value;
    if (field.kind === "json" && value.trim() && !value.trim().startsWith("file://")) {
      let found;
      try {
        found = JSON.parse(value);
      } catch {
        field.isBroken = true;
        this.#say(field, "This is not valid JSON yet. The YAML is unchanged.", true);
        return;
      }
      field.isBroken = false;
      this.#say(field, "", false);
      field.typed = JSON.stringify(found, null, 2);
      this.#change(this.#suite.setJson(field.path, found));
      return;
    }
    field.isBroken = false;
    if (field.input.tagName === "SELECT" && !value) this.#remove(field);
    else this.#change(this.#suite.set(field.path, value, field.style));
  }

  /** A field that was left empty has no key. The body of a prompt and the name of a provider must be there. */
  #settled(field) {
    const isNeeded = typeof field.path.at(-1) === "number" || field.path.at(-1) in BODIES || field.path.at(-1) === "id" || field.path.at(-2) === "vars";
    if (!field.input.value && !isNeeded) this.#remove(field);
  }

  #remove(field) {
    const change = this.#suite.remove(field.path);
    if (change) this.#change(change);
  }

  #say(field, text, isWrong) {
    field.problem.replaceChildren(...(text ? [make("p", { class: `field-problem ${isWrong ? "" : "is-warning"}` }, text)] : []));
    if (isWrong) field.input.setAttribute("aria-invalid", "true");
    else field.input.removeAttribute("aria-invalid");
  }

  #drawProblems() {
    for (const field of this.#fields) {
      if (field.isBroken) continue;
      const own = keyPath(field.path);
      const found = this.#problems.filter((problem) => !problem.file && (problem.key_path === own || problem.key_path.startsWith(`${own}.`) || (field.path.length > 2 && problem.key_path.startsWith(`${own}[`))));
      const first = found.find((problem) => problem.severity === "error") ?? found[0];
      this.#say(field, first ? (first.hint ? `${first.message}: ${first.hint}` : first.message) : "", first?.severity === "error");
    }
  }
}
