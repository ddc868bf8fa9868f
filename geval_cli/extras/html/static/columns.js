// The columns of the matrix as the reader wants them: hidden, pinned to the left, wider or narrower.

import { keep, kept, make } from "./page.js";

const STEP = 24;
const NARROWEST = 120;
const WIDEST = 900;

const heads = (table) => [...table.tHead.rows[0].cells].slice(1);
const nameOf = (head) => (head.dataset.variable ? "variable " : "") + [...head.querySelectorAll(".column-prompt, .column-provider")].map((part) => part.textContent.trim()).filter(Boolean).join(" × ");

/** The choices about columns, kept by their names; `apply(table)` brings a matrix into this form. */
export function setUpColumns(menu) {
  const list = menu.querySelector("[data-columns-list]");
  let key = "";
  let state = { hidden: {}, pinned: {}, widths: {}, whole: false };
  let table = null;

  function read() {
    const names = heads(table).map(nameOf);
    key = `geval-columns ${names.filter((name) => !name.startsWith("variable ")).join(" | ")}`;
    state = { ...state, ...kept(key) };
    const whole = make("input", { type: "checkbox" });
    whole.checked = state.whole;
    whole.addEventListener("change", () => {
      state.whole = whole.checked;
      keep(key, state);
      draw();
    });
    list.replaceChildren(make("label", { class: "check" }, whole, "Whole texts"), ...names.map(line));
    menu.hidden = false;
  }

  function line(name, column) {
    const shows = make("input", { type: "checkbox" });
    shows.checked = !state.hidden[name];
    const pins = make("button", { type: "button", class: "button is-quiet pin", "aria-pressed": String(Boolean(state.pinned[name])) }, "Pin");
    pins.append(make("span", { class: "visually-hidden" }, ` ${name}`));
    shows.addEventListener("change", () => change("hidden", name, !shows.checked));
    pins.addEventListener("click", () => {
      change("pinned", name, !state.pinned[name]);
      pins.setAttribute("aria-pressed", String(Boolean(state.pinned[name])));
    });
    return make("div", { class: "menu-line" }, make("label", { class: "check", dir: "auto", "data-column": column }, shows, name), pins);
  }

  function change(kind, name, value) {
    if (value) state[kind][name] = value;
    else delete state[kind][name];
    keep(key, state);
    draw();
  }

  function addHandle(head, name) {
    const handle = make("span", {
      class: "resizer", role: "separator", tabindex: "0", "aria-orientation": "vertical", "aria-label": `Width of ${name}`,
      "aria-valuemin": NARROWEST, "aria-valuemax": WIDEST, "aria-valuenow": Math.round(head.offsetWidth),
    });
    const resize = (width) => {
      const fitting = Math.round(Math.min(Math.max(width, NARROWEST), WIDEST));
      handle.setAttribute("aria-valuenow", fitting);
      change("widths", name, fitting);
    };
    handle.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
      if (!steps) return;
      event.preventDefault();
      event.stopPropagation();
      resize(head.offsetWidth + steps);
    });
    handle.addEventListener("pointerdown", (event) => {
      const start = event.clientX - head.offsetWidth;
      const move = (next) => resize(next.clientX - start);
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
      handle.addEventListener("pointermove", move);
      handle.addEventListener("pointerup", () => handle.removeEventListener("pointermove", move), { once: true });
    });
    handle.addEventListener("dblclick", () => change("widths", name, 0));
    head.append(handle);
  }

  function draw() {
    if (!table) return;
    const rows = [...table.rows];
    table.classList.toggle("is-unfolded", Boolean(state.whole));
    let left = rows[0].cells[0].offsetWidth;
    heads(table).forEach((head, column) => {
      const name = nameOf(head);
      const width = state.widths[name] ? `${state.widths[name]}px` : "";
      const isPinned = Boolean(state.pinned[name]) && !state.hidden[name];
      for (const row of rows) {
        const cell = row.cells[column + 1];
        if (!cell) continue;
        cell.hidden = Boolean(state.hidden[name]);
        cell.classList.toggle("is-pinned", isPinned);
        cell.classList.toggle("is-sized", Boolean(width));
        cell.style.left = isPinned ? `${left}px` : "";
        Object.assign(cell.style, { width, minWidth: width, maxWidth: width });
      }
      if (isPinned) left += head.offsetWidth;
    });
    dispatchEvent(new Event("resize"));
  }

  return {
    apply(found) {
      table = found;
      if (!table) return;
      const signature = heads(table).map(nameOf).join(" | ");
      if (list.dataset.of !== signature) read();
      list.dataset.of = signature;
      for (const head of heads(table)) if (!head.querySelector(".resizer")) addHandle(head, nameOf(head));
      draw();
    },
  };
}
