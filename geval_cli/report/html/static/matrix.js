// The matrix of one run: arrow keys between its cells, and the drawer in which a case opens.

import { announce } from "./page.js";

let table = null;
const drawer = document.querySelector("[data-drawer]");
const body = document.querySelector("[data-drawer-body]");
const pageLink = document.querySelector("[data-drawer-page]");
const runPath = location.pathname + location.search;
const runTitle = document.title;

let grid = [];
let opened = null;
let asked = 0;

function placeOf(cell) {
  for (const [row, cells] of grid.entries()) {
    const column = cells.indexOf(cell);
    if (column >= 0) return [row, column];
  }
  return null;
}

/** The next cell in a direction, passing over places without a result. */
function neighbour(cell, down, right) {
  const place = placeOf(cell);
  if (!place) return null;
  let [row, column] = place;
  do {
    row += down;
    column += right;
  } while (grid[row] && column >= 0 && column < grid[row].length && !grid[row][column]);
  return grid[row]?.[column] ?? null;
}

function moveFocus(cell) {
  for (const other of table.querySelectorAll("[data-cell][tabindex='0']")) other.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
  cell.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function targetOf(key, cell) {
  const [row, column] = placeOf(cell);
  const inRow = grid[row].filter(Boolean);
  const inColumn = grid.map((cells) => cells[column]).filter(Boolean);
  switch (key) {
    case "ArrowDown": return neighbour(cell, 1, 0);
    case "ArrowUp": return neighbour(cell, -1, 0);
    case "ArrowRight": return neighbour(cell, 0, 1);
    case "ArrowLeft": return neighbour(cell, 0, -1);
    case "Home": return inRow[0];
    case "End": return inRow.at(-1);
    case "PageDown": return inColumn[Math.min(inColumn.indexOf(cell) + 10, inColumn.length - 1)];
    case "PageUp": return inColumn[Math.max(inColumn.indexOf(cell) - 10, 0)];
    default: return null;
  }
}

/** Take in the table as it is now: of a run under way it comes late and grows. */
function readTable() {
  table = document.querySelector("[data-matrix]");
  grid = table ? [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1).map((cell) => cell.querySelector("[data-cell]"))) : [];
  if (!table) return;
  table.setAttribute("role", "grid");
  const cells = grid.flat().filter(Boolean);
  const entered = cells.find((cell) => cell.tabIndex === 0 && cell.hasAttribute("tabindex")) ?? cells[0];
  for (const cell of cells) cell.tabIndex = cell === entered ? 0 : -1;
  const keys = document.querySelector("[data-keys]");
  if (keys) keys.hidden = false;
}

function setUpKeys() {
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest("[data-matrix] [data-cell]");
    if (!cell || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.key === " ") {
      event.preventDefault();
      cell.click();
      return;
    }
    const target = targetOf(event.key, cell);
    if (!target) return;
    event.preventDefault();
    moveFocus(target);
  });
}

async function load(href) {
  const turn = ++asked;
  const answer = await fetch(href, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const found = page.querySelector("#case") ?? page.querySelector("#content > *");
  return turn === asked ? { found, title: page.title } : null;
}

/** Show the case at `href` in the drawer; `cell` is where the focus comes back to. */
async function open(href, cell, { keepsHistory = false } = {}) {
  let loaded;
  try {
    loaded = await load(href);
  } catch {
    location.assign(href);
    return;
  }
  if (!loaded) return;
  opened = cell ?? opened;
  body.replaceChildren(document.adoptNode(loaded.found));
  body.scrollTop = 0;
  pageLink.href = href;
  document.title = loaded.title;
  if (!keepsHistory) {
    const state = { drawer: href };
    if (history.state?.drawer) history.replaceState(state, "", href);
    else history.pushState(state, "", href);
  }
  for (const button of document.querySelectorAll("[data-drawer-step]")) {
    button.disabled = !opened || !neighbour(opened, Number(button.dataset.drawerStep), 0);
  }
  if (!drawer.open) drawer.showModal();
  body.focus();
  announce(document.querySelector("#case-title")?.textContent.trim() ?? "");
}

function close() {
  if (drawer.open) drawer.close();
  body.replaceChildren();
  document.title = runTitle;
  if (opened) moveFocus(opened);
}

function step(down) {
  const cell = opened && neighbour(opened, down, 0);
  if (cell) open(cell.href, cell);
}

function setUpDrawer() {
  document.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-matrix] [data-cell]");
    if (!cell || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    open(cell.href, cell);
  });
  body.addEventListener("click", (event) => {
    const link = event.target.closest("[data-sibling]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const cell = grid.flat().find((item) => item?.pathname === link.pathname);
    open(link.href, cell);
  });
  drawer.addEventListener("cancel", (event) => {
    event.preventDefault();
    leave();
  });
  drawer.addEventListener("click", (event) => {
    if (event.target === drawer) leave();
  });
  drawer.querySelector("[data-drawer-close]").addEventListener("click", leave);
  for (const button of drawer.querySelectorAll("[data-drawer-step]")) {
    button.addEventListener("click", () => step(Number(button.dataset.drawerStep)));
  }
  addEventListener("popstate", (event) => {
    if (event.state?.drawer) {
      const path = new URL(event.state.drawer, location.href).pathname;
      open(event.state.drawer, grid.flat().find((item) => item?.pathname === path), { keepsHistory: true });
    } else {
      close();
    }
  });
}

/** Closing is going back, so that the back button never opens what was closed. */
function leave() {
  if (history.state?.drawer) history.back();
  else {
    close();
    history.replaceState(null, "", runPath);
  }
}

function setUpFilters() {
  const form = document.querySelector("[data-filters]");
  for (const select of form.querySelectorAll("select")) select.addEventListener("change", () => form.requestSubmit());
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
    const sort = form.elements.sort;
    if (sort.value === "test") sort.disabled = true;
  });
  addEventListener("pageshow", () => { for (const field of form.elements) field.disabled = false; });
}

setUpFilters();
readTable();
setUpKeys();
setUpDrawer();
document.addEventListener("geval:results", readTable);
