// Inputs of the forms that are made of what the server knows, and the small parts that they are built of.

export function element(name, attributes = {}, ...children) {
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

export function button(label, act, { kind = "", sign = "", hidden = "" } = {}) {
  const made = element("button", { type: "button", class: `button ${kind}` });
  if (sign) made.append(icon(sign));
  made.append(hidden ? element("span", { class: "visually-hidden" }, hidden) : label);
  made.addEventListener("click", act);
  return made;
}

/** As many rows as a text has lines, within reason. */
export function fitLines(input) {
  input.rows = Math.min(14, Math.max(2, input.value.split("\n").length));
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
    if (!isLine) fitLines(input);
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

/** Rows that come and go. `makeRow(value)` returns the parts of one, `readRow(inputs)` its value; `isFilled` says of a
 * value whether it counts. What a part is called has the number of its row in place of a #. */
function rowsInput({ rowClass, addWords, removeWords, makeRow, readRow, isFilled }, onChange) {
  const rows = element("div", { class: "pair-rows" });
  const add = button(addWords, () => addRow().focus(), { kind: "is-quiet", sign: "plus" });
  const box = element("div", { class: "pairs" }, rows, add);
  const number = () => [...rows.children].forEach((row, index) => {
    for (const part of row.querySelectorAll("[data-says]")) part.setAttribute("aria-label", part.dataset.says.replace("#", index + 1));
  });
  const addRow = (value) => {
    const parts = makeRow(value);
    const remove = button("", () => { row.remove(); number(); add.focus(); onChange(); }, { kind: "is-quiet is-icon", sign: "close" });
    remove.dataset.says = removeWords;
    const row = element("div", { class: rowClass }, ...parts.slice(0, 2), remove, ...parts.slice(2));
    rows.append(row);
    number();
    return parts[0];
  };
  const read = () => [...rows.children].map((row) => readRow([...row.querySelectorAll("input")])).filter(isFilled);
  const show = (value) => {
    if (JSON.stringify(read()) === JSON.stringify(value ?? [])) return;
    rows.replaceChildren();
    for (const item of value ?? []) addRow(item);
  };
  return { element: box, focusable: add, isGroup: true, read: () => (read().length ? read() : null), show };
}

function pairsInput(entry, onChange) {
  const makeRow = ([name, text] = ["", ""]) => {
    const key = element("input", { class: "input mono", "data-says": `${entry.label}, #: which`, autocomplete: "off" });
    const said = element("input", { class: "input", "data-says": `${entry.label}, #: text`, autocomplete: "off", dir: "auto" });
    [key.value, said.value] = [name, text];
    return [key, said];
  };
  return rowsInput({
    rowClass: "pair-row",
    addWords: "Add a row",
    removeWords: "Remove row #",
    makeRow,
    readRow: (inputs) => inputs.map((input) => input.value),
    isFilled: ([name, text]) => name || text,
  }, onChange);
}

function checklistInput(entry, onChange) {
  const flag = (label, isOn) => {
    const input = element("input", { type: "checkbox", "data-says": `${label}, item #` });
    input.checked = isOn;
    return element("label", { class: "check-flag" }, input, label);
  };
  const makeRow = ({ item = "", weight = "", required = false, evidence = true } = {}) => {
    const text = element("input", { class: "input", "data-says": `${entry.label}, item #`, autocomplete: "off", dir: "auto" });
    const counts = element("input", { class: "input", "data-says": "Weight of item #", placeholder: "weight", inputmode: "decimal", autocomplete: "off" });
    [text.value, counts.value] = [item, weight];
    return [text, counts, element("div", { class: "check-flags" }, flag("required", required), flag("with evidence", evidence))];
  };
  return rowsInput({
    rowClass: "check-row",
    addWords: "Add an item",
    removeWords: "Remove item #",
    makeRow,
    readRow: ([text, counts, required, evidence]) => ({ item: text.value, weight: counts.value, required: required.checked, evidence: evidence.checked }),
    isFilled: ({ item }) => item.trim(),
  }, onChange);
}

export function makeInput(kind, entry, value, onChange) {
  if (kind === "flag") return flagInput(entry);
  if (kind === "choice") return choiceInput(entry);
  if (kind === "pairs") return pairsInput(entry, onChange);
  if (kind === "checklist") return checklistInput(entry, onChange);
  return textInput(kind, value, ["criteria", "value", "transform"].includes(entry.key));
}
