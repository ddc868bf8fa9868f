// The turns of a conversation as forms, one below the other as in a chat.

import { announce } from "./page.js";
import { YamlForms } from "./editor-forms.js";
import { button, element, fitLines } from "./editor-inputs.js";

const PLAYED = "played";

function roleWords(role) {
  return role === PLAYED ? "user, in the run" : role;
}

export class TurnForms extends YamlForms {
  constructor(place, yaml) {
    super(place, yaml, "/suites/turns");
  }

  draw({ turns, roles }) {
    this.remake(turns.map(({ role, others }) => [role, others]), () => [
      ...turns.map((turn, index) => this.#makeTurn(turn, index, roles)), this.#makeAdder(turns),
    ]);
    turns.forEach((turn, index) => {
      const input = this.list.querySelector(`textarea[data-path="${index}:text"]`);
      if (!input || input === document.activeElement || this.isWaiting(input.dataset.path)) return;
      if (input.value !== turn.text) input.value = turn.text;
      fitLines(input);
    });
  }

  #makeTurn({ role, text, others }, index, roles) {
    const number = index + 1;
    const box = element("div", { class: `assertion-form turn-form is-${role || "odd"}`, role: "group", "aria-label": `Turn ${number}` });
    const remove = button("", () => this.restructure({ index, is_removed: true }), { kind: "is-quiet is-icon", sign: "trash", hidden: `Delete turn ${number}` });
    if (!role) {
      const words = element("p", { class: "muted" }, "This turn has a form that only its YAML shows.");
      box.append(element("div", { class: "assertion-form-head" }, words, remove));
      return box;
    }
    const select = element("select", { class: "select", "aria-label": `Who says turn ${number}`, "data-path": `${index}:role` }, ...roles.map((name) => new Option(roleWords(name), name)));
    select.value = role;
    select.addEventListener("change", () => this.restructure({ index, role: select.value }));
    const said = element("textarea", { class: "textarea", rows: "2", dir: "auto", "aria-label": `What turn ${number} says`, "data-path": `${index}:text` });
    said.value = text;
    fitLines(said);
    said.addEventListener("input", () => {
      fitLines(said);
      this.later(said.dataset.path, () => this.change({ index, text: said.value }));
    });
    said.addEventListener("change", () => this.now(said.dataset.path));
    box.append(element("div", { class: "assertion-form-head" }, select, remove), said);
    if (others.length) box.append(element("p", { class: "hint", dir: "auto" }, `Its ${others.join(", ")} stand in the YAML.`));
    return box;
  }

  /** A new turn is of the kind that the conversation has: what a user is going to say, or what the other one said. */
  #makeAdder(turns) {
    const last = turns.at(-1)?.role;
    const role = !last || last === PLAYED ? PLAYED : last === "user" ? "assistant" : "user";
    const add = button("Add a turn", async () => {
      if (!(await this.restructure({ role, text: "" }))) return;
      [...this.list.querySelectorAll(".turn-form textarea")].at(-1)?.focus();
      announce("Added a turn.");
    }, { sign: "plus" });
    return element("div", { class: "assertion-adder" }, add);
  }
}
