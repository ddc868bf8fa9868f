// Forms for a list that a field has as YAML. The YAML is what counts: a change in a form is made in it by the server,
// which keeps every other byte of it.

import { send } from "./editor-server.js";
import { element } from "./editor-inputs.js";

const CHANGE_AFTER_MS = 250;
const READ_AFTER_MS = 400;

/** What can have the focus, behind a `:is`. */
export const FOCUSABLE = ":is(input, select, textarea, button)";

const busy = new Set();

/** Whether something that was typed in a form is not in its YAML yet. */
export function isUnsettled() {
  return busy.size > 0;
}

/** Wait until every change that was made in a form is in its YAML. */
export async function settled() {
  while (busy.size) await Promise.all([...busy].map((forms) => forms.settle()));
}

/** What all such forms do; a class of its own says in `draw(answer)` what they look like. */
export class YamlForms {
  #address;
  #timers = new Map();
  #chain = Promise.resolve();
  #isOwn = false;
  #isHeld = false;
  #shape = null;
  #readTimer = 0;

  /** `place` is where the forms go, `yaml` the field whose text they show, `address` where the server reads it. */
  constructor(place, yaml, address) {
    this.#address = address;
    this.yaml = yaml;
    this.list = element("div", { class: "assertion-list" });
    this.note = element("p", { class: "field-problem is-error", role: "status", hidden: true });
    place.replaceChildren(this.note, this.list);
    yaml.addEventListener("input", () => {
      if (this.#isOwn) return;
      clearTimeout(this.#readTimer);
      this.#readTimer = setTimeout(() => this.refresh(), READ_AFTER_MS);
    });
  }

  /** Show what the YAML says now. */
  refresh() {
    return this.#queue(() => this.#send(null));
  }

  /** Make what was typed a change at once, and wait until it is in the YAML. */
  async settle() {
    this.#commit();
    await this.#chain;
  }

  #commit() {
    for (const commit of [...this.#timers.values()]) commit.now();
  }

  /** Make a change in the YAML; what is wrong with it is said by `control`, or above the forms. */
  change(change, control = null) {
    return this.#queue(() => this.#send(change, control));
  }

  /** Make a change after which there are other forms, or in other places; returns whether it was begun. What is typed or
   * clicked before they are drawn would be about the wrong one: nothing can be typed, and no second such change is begun. */
  async restructure(change) {
    if (this.#isHeld) return false;
    this.#commit();
    this.#hold(true);
    try {
      await this.change(change);
    } finally {
      this.#hold(false);
    }
    return true;
  }

  #hold(isHeld) {
    this.#isHeld = isHeld;
    this.list.ariaBusy = String(isHeld);
    for (const input of this.list.querySelectorAll("input, textarea")) input.readOnly = isHeld;
  }

  /** What was typed becomes a change after a moment, so that not every letter is one. */
  later(name, work) {
    clearTimeout(this.#timers.get(name)?.timer);
    const now = () => {
      clearTimeout(this.#timers.get(name)?.timer);
      this.#timers.delete(name);
      work();
    };
    busy.add(this);
    this.#timers.set(name, { timer: setTimeout(now, CHANGE_AFTER_MS), now });
  }

  /** Make what was typed there a change now. */
  now(name) {
    this.#timers.get(name)?.now();
  }

  isWaiting(name) {
    return this.#timers.has(name);
  }

  /** Take all forms away, since the YAML cannot be read. */
  clear() {
    this.list.replaceChildren();
    this.#shape = null;
  }

  /** Make the forms anew with `make()` if they are of another shape than before; the focus stays in its place. */
  remake(shape, make) {
    const wanted = JSON.stringify(shape);
    if (wanted === this.#shape) return;
    this.#shape = wanted;
    const path = document.activeElement?.closest("[data-path]")?.dataset.path;
    this.list.replaceChildren(...make());
    const place = this.list.querySelector(`[data-path="${path}"]`);
    (place?.matches(FOCUSABLE) ? place : place?.querySelector(FOCUSABLE))?.focus();
  }

  #queue(work) {
    busy.add(this);
    this.#chain = this.#chain.then(work).finally(() => {
      if (!this.#timers.size) busy.delete(this);
    });
    return this.#chain;
  }

  async #send(change, control = null) {
    const text = this.yaml.value;
    const answer = await send(this.#address, change ? { text, change } : { text });
    if (change && this.yaml.value !== text) { // typed there meanwhile: make the change in that
      await this.#send(change, control);
      return;
    }
    if (!answer.ok) {
      this.refuse(answer, control);
      return;
    }
    this.note.hidden = true;
    if (control) control.say([]);
    if (change && answer.body.text !== text) {
      this.#isOwn = true;
      this.yaml.value = answer.body.text;
      this.yaml.dispatchEvent(new Event("input", { bubbles: true }));
      this.#isOwn = false;
    }
    await this.draw(answer.body);
  }

  /** Say why the server refused, beside `control` or in the place of the forms. */
  refuse(answer, control = null) {
    const { body } = answer;
    const [first] = body.errors ?? [];
    const words = first ? `${first.detail}${first.line ? ` (line ${first.line}, column ${first.column})` : ""}` : body.detail;
    const hint = first?.hint ?? body.hint;
    const text = hint ? `${words}: ${hint}` : words;
    if (control) {
      control.say([text]);
      return;
    }
    this.note.textContent = answer.status === 422 ? `The form comes back when the YAML can be read: ${text}` : text;
    this.note.hidden = false;
    this.clear();
  }
}
