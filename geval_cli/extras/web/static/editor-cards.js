// The cards of prompts, providers and tests: fields bound to the model, and what is wrong with them beside each.

import { AssertionForms } from "./editor-assertions.js";
import { element } from "./editor-inputs.js";
import { TurnForms } from "./editor-turns.js";

const templates = new Map();
let lastId = 0;

function template(name) {
  if (!templates.has(name)) templates.set(name, document.getElementById(`${name}-template`));
  return templates.get(name).content.firstElementChild.cloneNode(true);
}

export function fieldOf(part, name) {
  return part.querySelector(`[data-field="${name}"]`);
}

/** Bind every field of `part` to `item`; `onChange(item, name)` after each change. */
export function bindFields(part, item, onChange) {
  for (const field of part.querySelectorAll("[data-field]")) {
    const input = field.querySelector("[data-input]");
    const hint = field.querySelector("[data-hint]");
    const problems = field.querySelector("[data-problems]");
    lastId += 1;
    input.id = `field-${lastId}`;
    field.querySelector("label").htmlFor = input.id;
    problems.id = `${input.id}-problems`;
    if (hint) hint.id = `${input.id}-hint`;
    input.setAttribute("aria-describedby", hint ? `${problems.id} ${hint.id}` : problems.id);
    input.addEventListener("input", () => {
      item.fields[field.dataset.field] = input.value;
      fit(input);
      onChange(item, field.dataset.field);
    });
  }
  showFields(part, item);
}

/** Write the model's values into the fields, except into the one that somebody types in with the same value. */
export function showFields(part, item) {
  for (const field of part.querySelectorAll("[data-field]")) {
    const input = field.querySelector("[data-input]");
    const value = item.fields[field.dataset.field] ?? "";
    if (input.tagName === "SELECT" && ![...input.options].some((option) => option.value === value)) {
      input.add(new Option(value, value));
    }
    if (input.value !== value) input.value = value;
    fit(input);
  }
  for (const forms of Object.values(part.forms ?? {})) forms.refresh();
  for (const more of part.querySelectorAll("[data-more]")) {
    const isFilled = [...more.querySelectorAll("[data-input]")].some((input) => input.value);
    more.querySelector("summary").classList.toggle("is-filled", isFilled);
  }
}

/** As many lines as the text has, within reason. */
export function fit(input) {
  if (input.tagName !== "TEXTAREA") return;
  const least = Number(input.dataset.least ?? input.rows);
  input.dataset.least = least;
  const lines = input.value.split("\n").reduce((sum, line) => sum + (input.wrap === "off" ? 1 : Math.max(1, Math.ceil(line.length / 90))), 0);
  input.rows = Math.min(24, Math.max(least, lines));
}

export function makeCard(item, handlers) {
  if (!item.isEditable) return template("odd");
  const card = template(item.list);
  bindFields(card, item, handlers.onChange);
  card.querySelector("[data-left-over] button")?.addEventListener("click", () => handlers.onRemoveLeftOver(item));
  card.querySelector("[data-copy]")?.addEventListener("click", () => handlers.onCopy(item));
  card.querySelector("[data-delete]")?.addEventListener("click", () => handlers.onDelete(item));
  card.querySelector("[data-toggle]")?.addEventListener("click", () => openCard(card, card.classList.contains("is-closed")));
  return card;
}

export function openCard(card, isOpen) {
  const body = card.querySelector("[data-body]");
  if (!body) return;
  body.hidden = !isOpen;
  card.classList.toggle("is-closed", !isOpen);
  card.querySelector("[data-toggle]").setAttribute("aria-expanded", String(isOpen));
  if (!isOpen) return;
  card.querySelectorAll("textarea").forEach(fit);
  if (!card.querySelector("[data-assertions]") || card.forms) return;
  const yaml = (name) => fieldOf(card, name).querySelector("[data-input]");
  for (const part of card.querySelectorAll("[data-opened-if]")) part.open = part.dataset.openedIf.split(" ").some((name) => yaml(name).value);
  card.forms = {
    assertions: new AssertionForms(card.querySelector("[data-assertions]"), yaml("assert")),
    turns: new TurnForms(card.querySelector("[data-turns]"), yaml("turns")),
  };
  card.forms.assertions.showProblems(card.assertionProblems ?? []);
  for (const forms of Object.values(card.forms)) forms.refresh();
}

function firstLine(text) {
  return (text ?? "").split("\n").find((line) => line.trim())?.trim() ?? "";
}

/** The heading of a card, which fields it shows, and its tags. */
export function describeCard(card, item, number, suite) {
  const names = { prompts: "prompt", providers: "provider", default_test: "defaults", tests: "test" };
  const { fields } = item;
  const said = /^\s*(?:- )?(?:user|content): *(.+)/m.exec(fields.turns ?? "")?.[1];
  const title = fields.label || fields.id || fields.description || firstLine(fields.body) || firstLine(fields.input) || said || firstLine(fields.vars);
  const name = card.querySelector("[data-name]");
  if (name) name.textContent = title || `new ${names[item.list]}`;
  const numbered = card.querySelector("[data-number]");
  if (numbered) numbered.textContent = item.list === "tests" ? `#${number}` : `Prompt ${number}`;
  for (const [kind, verb] of [["copy", "Duplicate"], ["delete", "Delete"]]) {
    const label = card.querySelector(`[data-${kind}-label]`);
    if (label) label.textContent = `${verb} ${names[item.list]} ${number}`;
  }
  showLeftOver(card, suite.leftOver(item));
  if (item.list === "prompts") showPromptFields(card, fields);
  if (["tests", "default_test"].includes(item.list)) showTestFields(card, fields, suite);
}

const FIELD_NAMES = { evaluation_criteria: "evaluation criteria", evaluation_parsing: "parsing", evaluation_schema: "Evaluation Schema" };

/** Offer to remove what a change of mode has left in the file without a meaning. */
function showLeftOver(card, names) {
  const note = card.querySelector("[data-left-over]");
  if (!note) return;
  note.hidden = !names.length;
  const words = names.map((name) => FIELD_NAMES[name]).join(" and ");
  note.querySelector("p").textContent = `Left over, and without a meaning in this mode: ${words}.`;
}

function showPromptFields(card, fields) {
  fieldOf(card, "evaluation_criteria").hidden = fields.evaluation_mode !== "llm";
  fieldOf(card, "evaluation_parsing").hidden = fields.evaluation_mode !== "schema";
  const body = fieldOf(card, "body");
  const words = { raw: "Prompt", system: "System message", messages: "Messages" };
  body.querySelector("label").textContent = words[fields.kind] ?? "Prompt";
  body.querySelector("textarea").classList.toggle("mono", fields.kind === "messages");
}

/** How many items a text has, in words: those of a YAML list unless told otherwise. A file of them is not counted. */
function tagOf(text, word, item = /^- /gm) {
  const count = ((text ?? "").match(item) ?? []).length;
  if (count) return count === 1 ? `1 ${word}` : `${count} ${word}s`;
  return text?.trim() ? `${word}s` : "";
}

function showTestFields(card, fields, suite) {
  card.querySelector("[data-schema-fields]").hidden = !suite.usesSchemas;
  const tags = [tagOf(fields.turns, "turn"), tagOf(fields.images, "image", /\S.*/g), tagOf(fields.assert, "assertion")].filter(Boolean);
  if (fields.evaluation_schema.trim() && suite.usesSchemas) tags.push("schema");
  card.querySelector("[data-tags]").replaceChildren(...tags.map((text) => element("span", { class: "chip" }, text)));
}

/** Say beside its field (or card) what is wrong; `problems` is a list of [field, problem]. */
export function showProblems(part, problems) {
  const byPlace = new Map();
  for (const [name, problem] of problems) {
    let field = name ? fieldOf(part, name) : null;
    if (field?.closest("[hidden]") === field) field = fieldOf(part, "evaluation_mode") ?? field;
    const place = field?.querySelector("[data-problems]") ?? part.querySelector("[data-item-problems]");
    if (place) byPlace.set(place, [...(byPlace.get(place) ?? []), problem]);
  }
  for (const place of part.querySelectorAll("[data-problems], [data-item-problems]")) {
    const found = byPlace.get(place) ?? [];
    const text = JSON.stringify(found);
    if (place.dataset.shown === text || (!found.length && !place.dataset.shown)) continue;
    place.dataset.shown = found.length ? text : "";
    place.replaceChildren(...found.map(problemLine));
    const input = place.closest("[data-field]")?.querySelector("[data-input]");
    if (input && found.some((problem) => problem.severity === "error")) input.setAttribute("aria-invalid", "true");
    else input?.removeAttribute("aria-invalid");
  }
  part.assertionProblems = problems.map(([, problem]) => problem).filter((problem) => problem.assertion !== null);
  part.forms?.assertions.showProblems(part.assertionProblems);
  part.classList.toggle("has-problems", problems.some(([, problem]) => problem.severity === "error"));
}

function problemLine(problem) {
  const line = element("p", { class: `field-problem is-${problem.severity}` }, element("span", { dir: "auto" }, problem.message));
  const more = [problem.hint, ...problem.notes].filter(Boolean);
  if (more.length) line.append(" ", element("span", { class: "muted", dir: "auto" }, more.join(" · ")));
  if (problem.line !== null) {
    const place = `${problem.line}:${problem.column}`;
    const words = problem.in_field ? `line ${problem.line}, column ${problem.column} of this field` : problem.file ? `${problem.file}:${place}` : place;
    line.append(" ", element("span", { class: "muted mono nowrap" }, words));
  }
  return line;
}
