// What the editor knows of a suite: the fields as the file has them, as they are on the page, and the difference.

/** The parts of a suite. What every test has is a part of one item, which is always there. */
export const LISTS = ["prompts", "providers", "default_test", "tests"];

const TEST = ["description", "vars", "input", "turns", "images", "expected_output", "evaluation_schema", "evaluation_parsing", "assert", "more"];
const EMPTY = {
  prompts: ["id", "label", "kind", "body", "evaluation_mode", "evaluation_criteria", "evaluation_parsing", "expected_schema", "more"],
  providers: ["id", "label", "more"],
  default_test: TEST,
  tests: TEST,
};

let lastKey = 0;

function newItem(list, values) {
  lastKey += 1;
  const empty = Object.fromEntries(EMPTY[list].map((name) => [name, ""]));
  return { key: lastKey, list, origin: null, isCopy: false, isEditable: true, initial: empty, fields: { ...empty }, ...values };
}

function formsOf(form, list) {
  return list === "default_test" ? [form.default_test] : form[list];
}

export class Suite {
  constructor(page) {
    this.path = page.path;
    this.config = page.config;
    this.base = null;
    this.load(page);
  }

  /** Take the suite as the file has it. */
  load(page) {
    this.digest = page.digest;
    this.text = page.text;
    this.testsFile = page.form.tests_file;
    this.suite = { list: "suite", initial: page.form.fields, fields: { ...page.form.fields } };
    for (const list of LISTS) {
      this[list] = formsOf(page.form, list).map((form, origin) => newItem(list, {
        origin, isEditable: form.is_editable, initial: form.fields, fields: { ...form.fields },
      }));
    }
    this.counts = Object.fromEntries(LISTS.map((list) => [list, this[list].length]));
  }

  add(list) {
    const item = newItem(list, { isNew: true });
    if (list === "prompts") item.fields.kind = "raw";
    this[list].push(item);
    return item;
  }

  copy(item) {
    const list = this[item.list];
    const copied = newItem(item.list, {
      origin: item.origin, isCopy: item.origin !== null, initial: item.initial, fields: { ...item.fields }, isNew: true,
    });
    if (copied.fields.id && item.list === "prompts") copied.fields.id = this.freeId(copied.fields.id);
    list.splice(list.indexOf(item) + 1, 0, copied);
    return copied;
  }

  freeId(id) {
    const taken = new Set(this.prompts.map((prompt) => prompt.fields.id));
    let number = 2;
    while (taken.has(`${id}-${number}`)) number += 1;
    return `${id}-${number}`;
  }

  remove(item) {
    this[item.list].splice(this[item.list].indexOf(item), 1);
  }

  /** Whether some prompt is evaluated by each test's schema. */
  get usesSchemas() {
    return this.prompts.some((prompt) => prompt.fields.evaluation_mode === "schema");
  }

  /** Fields of an item that are filled in and mean nothing as the modes of the prompts are now. */
  leftOver(item) {
    if (!item.isEditable) return [];
    const { fields } = item;
    const isFilled = (name) => fields[name]?.trim();
    if (item.list === "prompts") {
      const mode = fields.evaluation_mode;
      // Without a mode the criteria go along anyway: they would mean one.
      return [mode === "schema" && "evaluation_criteria", mode !== "schema" && "evaluation_parsing"].filter((name) => name && isFilled(name));
    }
    if (!["tests", "default_test"].includes(item.list) || this.usesSchemas) return [];
    return ["evaluation_schema", "evaluation_parsing"].filter(isFilled);
  }

  /** The fields of an item that differ from the file. Criteria without a mode would mean llm, so they go with it. */
  changes(item) {
    const changed = Object.entries(item.fields).filter(([name, value]) => value !== (item.initial[name] ?? ""));
    const fields = Object.fromEntries(changed);
    if (item.list === "prompts" && item.fields.evaluation_mode === "" && item.isEditable) {
      delete fields.evaluation_criteria;
      if (item.initial.evaluation_criteria) fields.evaluation_criteria = "";
    }
    return fields;
  }

  draft() {
    const lists = LISTS.map((list) => {
      if (list === "tests" && this.testsFile) return [list, null];
      const items = this[list].map((item) => ({ origin: item.origin, is_copy: item.isCopy, fields: this.changes(item) }));
      return [list, list === "default_test" ? items[0] : items];
    });
    return { fields: this.changes(this.suite), ...Object.fromEntries(lists) };
  }

  /** What a request about this draft holds; `base` when the file on disk is not the one it was made from. */
  request() {
    const asked = { path: this.path, digest: this.digest, draft: this.draft() };
    return this.base === null ? asked : { ...asked, base: this.base };
  }

  get isChanged() {
    if (Object.keys(this.changes(this.suite)).length) return true;
    return LISTS.some((list) => this[list].length !== this.counts[list]
      || this[list].some((item, index) => item.origin !== index || item.isCopy || Object.keys(this.changes(item)).length));
  }

  /** What must be remembered to come back to this draft. */
  snapshot() {
    const lists = LISTS.map((list) => [list, this[list].map(({ origin, isCopy, fields }) => ({ origin, isCopy, fields }))]);
    return { digest: this.digest, fields: this.suite.fields, ...Object.fromEntries(lists) };
  }

  /** Come back to a remembered draft of the same file. */
  restore(snapshot) {
    this.suite.fields = { ...this.suite.fields, ...snapshot.fields };
    for (const list of LISTS.filter((name) => snapshot[name])) {
      const originals = this[list];
      this[list] = snapshot[list].map(({ origin, isCopy, fields }) => {
        const original = origin === null ? null : originals[origin];
        const values = { origin, isCopy, fields: { ...fields } };
        return newItem(list, original ? { ...values, initial: original.initial, isEditable: original.isEditable } : values);
      });
    }
  }

  /** After saving: what was sent is now what the file has; what was typed since then stays a change. */
  saved(answer, sent) {
    this.digest = answer.digest;
    this.text = answer.text;
    this.base = null;
    settle(this.suite, answer.form.fields, sent.suite);
    for (const list of LISTS) {
      const forms = formsOf(answer.form, list);
      this.counts[list] = forms.length;
      for (const item of this[list]) {
        item.origin = null;
        item.isCopy = false;
      }
      if (list === "tests" && this.testsFile) continue;
      forms.forEach((form, index) => {
        const { item, fields } = sent[list][index];
        item.origin = index;
        item.isEditable = form.is_editable;
        settle(item, form.fields, fields);
      });
    }
  }

  /** The items and their fields as they are sent, for `saved`. */
  sending() {
    const lists = LISTS.map((list) => [list, this[list].map((item) => ({ item, fields: { ...item.fields } }))]);
    return { suite: { ...this.suite.fields }, ...Object.fromEntries(lists) };
  }
}

function settle(item, inFile, sent) {
  item.initial = inFile;
  for (const [name, value] of Object.entries(inFile)) {
    if (item.fields[name] === sent[name]) item.fields[name] = value;
  }
}
