// The assertions of a test as forms, made of what the server knows of each type; those of a set stand within its form.

import { announce } from "./page.js";
import { FOCUSABLE, YamlForms } from "./editor-forms.js";
import { button, element, makeInput } from "./editor-inputs.js";
import { send } from "./editor-server.js";

let known = null;
let lastId = 0;

/** The server's answer with every type; all forms ask once, and again only after a failure. */
async function loadKinds() {
  known ??= send("/suites/assertions", undefined, "GET");
  const answer = await known;
  if (!answer.ok) known = null;
  return answer;
}

/** Where an assertion stands: its number in the list, or in that of the set `within`. */
function placeOf(index, within = null) {
  const name = within === null ? `${index}` : `${within}.${index}`;
  const words = within === null ? `${index + 1}` : `${index + 1} of set ${within + 1}`;
  return { index, within, name, words };
}

/** The place that a problem is about. */
function placeOfProblem({ assertion, member }) {
  return member === null ? placeOf(assertion) : placeOf(member, assertion);
}

/** Every form with its place: those of the list, each set followed by its members. */
function placed(assertions) {
  return assertions.flatMap((form, index) => [
    [form, placeOf(index)],
    ...(form.members ?? []).map((member, number) => [member, placeOf(number, index)]),
  ]);
}

function holdsOthers(kind) {
  return kind.inputs.some((entry) => entry.kind === "assertions");
}

export class AssertionForms extends YamlForms {
  #controls = new Map();
  #problems = [];

  /** `place` is where the forms go, `yaml` the field whose text they show. */
  constructor(place, yaml) {
    super(place, yaml, "/suites/assertions");
  }

  async draw({ assertions }) {
    const answer = await loadKinds();
    if (!answer.ok) {
      this.refuse(answer);
      return;
    }
    const { kinds, often_used: oftenUsed } = answer.body;
    const knownKinds = { kinds, oftenUsed, byType: new Map(kinds.map((kind) => [kind.type, kind])) };
    const forms = placed(assertions);
    const kindsOf = (form) => (knownKinds.byType.get(form.type)?.inputs ?? []).map((entry) => form.values[entry.key]?.kind ?? entry.kind);
    this.remake(forms.map(([form, place]) => [place.name, form.type, form.left_over, kindsOf(form)]), () => {
      this.#controls.clear();
      return [...assertions.map((form, index) => this.#makeForm(form, placeOf(index), knownKinds)), this.#makeAdder(knownKinds)];
    });
    for (const [form, place] of forms) this.#show(form, place);
    this.showProblems(this.#problems);
  }

  #show(form, place) {
    for (const [path, control] of this.#controls) {
      if (control.place.name !== place.name || control.box.contains(document.activeElement) || this.isWaiting(path)) continue;
      control.show(form.values[control.key]?.value ?? null);
    }
    const type = this.list.querySelector(`[data-path="${place.name}:type"] select`);
    if (type) type.value = form.type;
    const negated = this.list.querySelector(`[data-negated="${place.name}"]`);
    if (negated) negated.checked = form.is_negated;
  }

  #typeSelect({ kinds, oftenUsed }, label, { chosen = "", isWithin = false } = {}) {
    const select = element("select", { class: "select", "aria-label": label });
    // A set cannot hold another set.
    const options = (listed) => listed.filter((kind) => !isWithin || kind.type === chosen || !holdsOthers(kind)).map((kind) => new Option(kind.type, kind.type));
    const group = (name, listed) => element("optgroup", { label: name }, ...options(listed));
    select.append(group("Often used", kinds.slice(0, oftenUsed)), group("All others", kinds.slice(oftenUsed)));
    if (chosen) select.value = chosen;
    return select;
  }

  #makeAdder(choices, within = null) {
    const where = within === null ? "" : ` of set ${within + 1}`;
    const select = this.#typeSelect(choices, `Type of the new assertion${where}`, { isWithin: within !== null });
    const add = button(within === null ? "Add an assertion" : "Add to the set", async () => {
      if (!(await this.restructure({ type: select.value, within }))) return;
      const list = within === null ? this.list : this.list.querySelector(`[data-members="${within}"]`);
      const added = [...list.children].findLast((child) => child.matches(".assertion-form"));
      added?.querySelector(`[data-path] ${FOCUSABLE}`)?.focus();
      announce(`Added ${select.value}.`);
    }, { sign: "plus" });
    return element("div", { class: "assertion-adder" }, select, add);
  }

  #makeForm(form, place, choices) {
    const { index, within, name } = place;
    const kind = choices.byType.get(form.type);
    const box = element("div", { class: "assertion-form", role: "group", "aria-label": `Assertion ${place.words}`, "data-form": name });
    if (!kind) {
      const what = form.type ? `${form.type} is no type of assertion that this editor knows.` : "This assertion has a form that only its YAML shows.";
      box.append(element("p", { class: "muted" }, what));
      return box;
    }
    const type = this.#typeSelect(choices, `Type of assertion ${place.words}`, { chosen: form.type, isWithin: within !== null });
    const negated = element("input", { type: "checkbox", "data-negated": name });
    const retype = () => this.restructure({ index, within, type: (negated.checked ? "not-" : "") + type.value });
    type.addEventListener("change", retype);
    negated.addEventListener("change", retype);
    const remove = button("", () => this.restructure({ index, within, is_removed: true }), { kind: "is-quiet is-icon", sign: "trash", hidden: `Delete assertion ${place.words}` });
    const typePlace = element("span", { "data-path": `${name}:type` }, type);
    box.append(element("div", { class: "assertion-form-head" }, typePlace, element("label", { class: "assertion-not" }, negated, "not"), remove));
    box.append(element("p", { class: "hint" }, kind.about.replaceAll("`", "")));
    box.append(element("div", { class: "field-problems", "data-about": name, "aria-live": "polite" }));
    if (form.left_over.length) box.append(this.#leftOver(form, place));
    // Members that have no forms of their own are shown as the YAML that they are.
    const inputs = kind.inputs.filter((entry) => entry.kind !== "assertions" || form.values[entry.key]);
    const first = inputs.filter((entry) => entry.is_first || form.values[entry.key]);
    const rest = inputs.filter((entry) => !first.includes(entry));
    box.append(...first.map((entry) => this.#makeControl(form, place, entry)));
    if (rest.length) {
      box.append(element("details", { class: "more" }, element("summary", {}, "More settings"), ...rest.map((entry) => this.#makeControl(form, place, entry))));
    }
    if (inputs.length < kind.inputs.length) box.append(this.#makeMembers(form, index, choices));
    return box;
  }

  #makeMembers(form, index, choices) {
    const made = (form.members ?? []).map((member, number) => this.#makeForm(member, placeOf(number, index), choices));
    const list = element("div", { class: "assertion-list is-members", role: "group", "aria-label": `Assertions of set ${index + 1}`, "data-members": index });
    list.append(element("p", { class: "label" }, "Assertions of the set"), ...made, this.#makeAdder(choices, index));
    return list;
  }

  #leftOver(form, { index, within }) {
    const keys = form.left_over.map((key) => `“${key}”`).join(", ");
    const words = element("p", { dir: "auto" }, `${keys} ${form.left_over.length > 1 ? "mean" : "means"} nothing to ${form.type}.`);
    const drop = button(form.left_over.length > 1 ? "Remove them" : "Remove it", () => this.restructure({ index, within, drop: form.left_over }));
    return element("div", { class: "note is-warning assertion-left-over", role: "status" }, words, drop);
  }

  #makeControl(form, place, entry) {
    const { index, within } = place;
    const path = `${place.name}:${entry.key}`;
    const kind = form.values[entry.key]?.kind ?? entry.kind;
    const commit = () => this.change({ index, within, key: entry.key, kind, value: control.read() }, control);
    const control = makeInput(kind, entry, form.values[entry.key]?.value, commit);
    lastId += 1;
    const id = `assertion-input-${lastId}`;
    const label = control.isGroup ? element("p", { class: "label", id }, entry.label) : element("label", { for: id }, entry.label);
    if (control.isGroup) {
      control.element.setAttribute("role", "group");
      control.element.setAttribute("aria-labelledby", id);
    } else control.focusable.id = id;
    const hint = element("p", { class: "hint", id: `${id}-hint` }, hintOf(entry, kind));
    const problems = element("div", { class: "field-problems", id: `${id}-problems`, "aria-live": "polite" });
    control.focusable.setAttribute("aria-describedby", `${id}-problems ${id}-hint`);
    const box = element("div", { class: `field is-${kind}`, "data-path": path }, label, control.element, problems, hint);
    if (kind === "yaml") label.append(" ", element("span", { class: "chip" }, "YAML"));
    control.element.addEventListener("input", () => this.later(path, commit));
    control.element.addEventListener("change", () => this.now(path));
    const say = (texts) => {
      problems.replaceChildren(...errorLines(texts));
      if (texts.length) control.focusable.setAttribute("aria-invalid", "true");
      else control.focusable.removeAttribute("aria-invalid");
    };
    Object.assign(control, { place, key: entry.key, box, say });
    this.#controls.set(path, control);
    control.show(form.values[entry.key]?.value ?? null);
    return box;
  }

  /** Bring the input that a problem is about into view; the assertion where it is about none. */
  async goTo(problem) {
    await this.settle();
    const { name } = placeOfProblem(problem);
    const control = this.#controls.get(`${name}:${problem.key}`);
    const place = control?.box ?? this.list.querySelector(`[data-form="${name}"]`) ?? this.yaml;
    place.closest("details")?.setAttribute("open", "");
    place.scrollIntoView({ block: "center" });
    (control?.focusable ?? place.querySelector("select") ?? this.yaml).focus({ preventScroll: true });
  }

  /** Say beside its input what the check of the suite found; what is about no input, under the type. */
  showProblems(problems) {
    this.#problems = problems;
    const texts = (found) => found.map((problem) => [problem.message, problem.hint].filter(Boolean).join(": "));
    const named = problems.map((problem) => [placeOfProblem(problem).name, problem]);
    const isShown = new Set();
    for (const control of this.#controls.values()) {
      const here = named.filter(([name, problem]) => name === control.place.name && problem.key === control.key).map(([, problem]) => problem);
      here.forEach((problem) => isShown.add(problem));
      control.say(texts(here));
      if (here.length) control.box.closest("details")?.setAttribute("open", "");
    }
    for (const place of this.list.querySelectorAll("[data-about]")) {
      const here = named.filter(([name, problem]) => name === place.dataset.about && !isShown.has(problem)).map(([, problem]) => problem);
      place.replaceChildren(...errorLines(texts(here)));
    }
  }
}

function errorLines(texts) {
  return texts.map((text) => element("p", { class: "field-problem is-error" }, text));
}

function hintOf(entry, kind) {
  const isList = kind === "texts";
  return [entry.hint.replaceAll("`", ""), isList ? "One a line." : "", isList && entry.choices.length ? `One of ${entry.choices.join(", ")}.` : ""].filter(Boolean).join(" ");
}
