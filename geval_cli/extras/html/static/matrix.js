// The results of one run: the form that filters them, keys, and the drawer in which a case opens.
//
// Where results come from is the `source`, a server or the report's own file:
//   address(query)       the address of the list that `query` (URLSearchParams) chooses
//   query(href)          what an address of the list chooses
//   caseIn(href)         the address of the case that an address shows, as cells have it; null for the list
//   list(query, region)  a promise of the element with these results, for the place of `region`
//   load(href)           a promise of { found, title }: the element of the case at `href`, and a title for the window
//   keep(cell, list)     (optional) keeps the addresses of the cell that was looked at and of the list around it
//   kept()               (optional) { cell, isReturning }: what was kept, and whether the reader comes back to it

import { setUpColumns } from "./columns.js";
import { offerOthers, setUpOutputs } from "./output.js";
import { announce, hasModifier } from "./page.js";

const TYPING_MS = 250;
const MOVES = {
  ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1],
  j: [1, 0], k: [-1, 0], l: [0, 1], h: [0, -1],
};
const IS_TYPED_IN = "input:not([type=radio], [type=checkbox]), select, textarea, [contenteditable]";

const form = document.querySelector("[data-filters]");
const drawer = document.querySelector("[data-drawer]");
const drawerBody = document.querySelector("[data-drawer-body]");
const runTitle = document.title;

let source = null;
let columns = null;
let region = document.querySelector("[data-results]");
let grid = [];
let shown = "";
let current = null;
let opened = null;
let turn = 0;

const isPlainClick = (event) => !event.button && !hasModifier(event);
const addressOf = (cell) => cell.getAttribute("href");
const cellAt = (href) => grid.flat().find((cell) => cell && addressOf(cell) === href) ?? null;

// ---- the grid ----

function readGrid() {
  const table = region.querySelector("[data-matrix]");
  grid = table ? [...table.tBodies[0].rows].map((row) => [...row.cells].filter((cell) => !cell.matches(".test, .variable")).map((cell) => cell.querySelector("[data-cell]"))) : [];
  const cells = grid.flat().filter(Boolean);
  if (table) table.setAttribute("role", "grid");
  current = (current && cellAt(addressOf(current))) ?? cells[0] ?? null;
  for (const cell of cells) cell.tabIndex = cell === current ? 0 : -1;
  columns.apply(table);
  showCounts();
  stickHead();
}

/** How many results have which status, on the chosen metric if there is one. */
function showCounts() {
  const counts = JSON.parse(region.dataset.counts ?? "null");
  for (const label of form.querySelectorAll("[data-count]")) {
    const status = label.closest("label").querySelector("input").value;
    const all = counts && Object.values(counts).reduce((sum, count) => sum + count, 0);
    label.textContent = Number(counts ? (status ? counts[status] : all) : label.dataset.count).toLocaleString("en");
  }
  const more = [...form.querySelectorAll("[data-more-filters] [name]")].filter((field) => (field.type === "checkbox" ? field.checked : field.value));
  const count = form.querySelector("[data-more-count]");
  if (count) count.textContent = more.length || "";
}

/** Keep the heads in sight. A table that is wider than the page scrolls in its frame, where CSS cannot do it. */
function stickHead() {
  const frame = region.querySelector("[data-matrix-frame]");
  if (!frame) return;
  const table = frame.firstElementChild;
  const bar = document.querySelector(".top");
  const isWide = table.offsetWidth > frame.clientWidth + 1;
  frame.classList.toggle("is-whole", !isWide);
  const { top, height } = table.getBoundingClientRect();
  const shift = Math.min(bar.offsetHeight - top, height - table.tHead.offsetHeight);
  table.tHead.style.transform = isWide && shift > 0 ? `translateY(${shift}px)` : "";
}

function placeOf(cell) {
  for (const [row, cells] of grid.entries()) {
    const column = cells.indexOf(cell);
    if (column >= 0) return [row, column];
  }
  return null;
}

const canTake = (cell) => cell && !cell.closest("td").hidden;

/** The next cell in a direction, passing over places without a result and hidden columns. */
function neighbour(cell, down, right) {
  const place = placeOf(cell);
  if (!place) return null;
  let [row, column] = place;
  do {
    row += down;
    column += right;
  } while (grid[row] && column >= 0 && column < grid[row].length && !canTake(grid[row][column]));
  return grid[row]?.[column] ?? null;
}

function targetOf(key, cell) {
  if (MOVES[key]) return neighbour(cell, ...MOVES[key]);
  const place = { Home: 0, End: -1 }[key];
  return place === undefined ? null : grid[placeOf(cell)[0]].filter(canTake).at(place);
}

function makeCurrent(cell) {
  if (current) current.tabIndex = -1;
  current = cell;
  cell.tabIndex = 0;
  source.keep?.(addressOf(cell), source.address(new URLSearchParams(shown)));
}

function focusOn(cell) {
  makeCurrent(cell);
  cell.focus({ preventScroll: true });
  cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  // The heads and the tests lie over what scrolls beneath them.
  const frame = region.querySelector("[data-matrix-frame]");
  const hidden = frame.querySelector(".test").getBoundingClientRect().right - cell.getBoundingClientRect().left;
  if (hidden > 0) frame.scrollLeft -= hidden;
}

// ---- the list ----

function queryOfForm() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (value && !(name === "sort" && value === "test")) query.append(name, value.trim());
  }
  return query;
}

function writeForm(query) {
  for (const field of form.elements) {
    if (!field.name) continue;
    const value = query.get(field.name) ?? "";
    if (field.type === "radio" || field.type === "checkbox") field.checked = field.value === value;
    else if (field !== document.activeElement || field.type !== "search") field.value = value || (field.name === "sort" ? "test" : "");
  }
}

/** Put the results of `query` in the place of those that are shown; everything around them stays where it is. */
async function show(query, { keepsHistory = false, replaces = false } = {}) {
  const own = ++turn;
  form.setAttribute("aria-busy", "true");
  let found;
  try {
    found = await source.list(query, region);
  } catch {
    location.assign(source.address(query));
    return;
  }
  if (own !== turn) return;
  const left = region.querySelector("[data-matrix-frame]")?.scrollLeft ?? 0;
  const top = scrollY;
  const wasWithin = region.contains(document.activeElement);
  if (found !== region) region.replaceWith(found);
  region = found;
  shown = query.toString();
  region.dataset.shown = shown;
  readGrid();
  const frame = region.querySelector("[data-matrix-frame]");
  if (frame) frame.scrollLeft = left;
  scrollTo({ top, behavior: "instant" });
  if (wasWithin && current) current.focus({ preventScroll: true });
  form.removeAttribute("aria-busy");
  for (const link of form.querySelectorAll("[data-clear]")) link.hidden = [...query.keys()].every((name) => name === "sort" || name === "page");
  announce(region.querySelector("[data-found]")?.textContent ?? "");
  if (keepsHistory) return;
  const address = source.address(query);
  if (replaces) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
}

/** Show what a query string names and nothing else, as `metric=tone&status=failed`; for links and drawings. */
export function filterBy(text) {
  const query = new URLSearchParams(text);
  writeForm(query);
  show(query);
  form.scrollIntoView({ block: "nearest" });
}

function setUpForm() {
  let typing = 0;
  const apply = (options) => {
    clearTimeout(typing);
    const query = queryOfForm();
    if (query.toString() !== shown) show(query, options);
  };
  form.querySelector("[data-apply]").hidden = true;
  form.addEventListener("change", ({ target }) => target.name && apply());
  form.addEventListener("input", (event) => {
    if (event.target.type !== "search") return;
    clearTimeout(typing);
    typing = setTimeout(() => apply({ replaces: true }), TYPING_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
  document.addEventListener("click", (event) => {
    if (!isPlainClick(event)) return;
    const link = event.target.closest("[data-filter], [data-clear], [data-results] [data-page], [data-charts] a");
    if (!link) return;
    event.preventDefault();
    if (link.closest("[data-charts]")) filterBy(source.query(new URL(link.getAttribute("href"), location.href).href));
    else if (link.dataset.page) turnPage(link.dataset.page);
    else filterBy(link.dataset.filter ?? "");
  });
}

function turnPage(number) {
  const query = new URLSearchParams(shown);
  query.set("page", number);
  show(query).then(() => {
    region.scrollIntoView({ block: "nearest" });
    if (current) focusOn(current);
  });
}

// ---- the drawer ----

/** Show the case at `href`; the focus comes back to its cell. */
async function open(href, { keepsHistory = false } = {}) {
  const own = ++turn;
  let loaded;
  try {
    loaded = await source.load(href);
  } catch {
    location.assign(href);
    return;
  }
  if (own !== turn) return;
  opened = cellAt(href) ?? opened;
  if (opened) makeCurrent(opened);
  drawerBody.replaceChildren(document.adoptNode(loaded.found));
  offerOthers(drawerBody);
  drawerBody.scrollTop = 0;
  const pageLink = drawer.querySelector("[data-drawer-page]");
  if (pageLink) pageLink.href = href;
  document.title = loaded.title;
  if (!keepsHistory) {
    const state = { drawer: href };
    if (history.state?.drawer) history.replaceState(state, "", href);
    else history.pushState(state, "", href);
  }
  for (const button of drawer.querySelectorAll("[data-drawer-step]")) {
    button.disabled = !opened || !neighbour(opened, Number(button.dataset.drawerStep), 0);
  }
  if (!drawer.open) drawer.showModal();
  drawerBody.focus();
  announce(document.querySelector("#case-title")?.textContent.trim() ?? "");
}

function close() {
  if (drawer.open) drawer.close();
  drawerBody.replaceChildren();
  document.title = runTitle;
  if (opened) focusOn(opened);
}

/** Closing is going back, so that the back button never opens what was closed. */
function leave() {
  if (history.state?.drawer) history.back();
  else {
    close();
    history.replaceState(null, "", source.address(new URLSearchParams(shown)));
  }
}

function step(down, right) {
  const cell = opened && neighbour(opened, down, right);
  if (cell) open(addressOf(cell));
}

function setUpDrawer() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-cell], [data-sibling], [data-opens-case]");
    if (!link || !isPlainClick(event)) return;
    event.preventDefault();
    open(addressOf(link));
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
    button.addEventListener("click", () => step(Number(button.dataset.drawerStep), 0));
  }
}

// ---- keys and addresses ----

function setUpKeys() {
  document.addEventListener("keydown", (event) => {
    if (hasModifier(event) || event.target.closest(IS_TYPED_IN)) return;
    if (drawer.open) keyInDrawer(event);
    else keyInList(event);
  });
  document.querySelector("[data-keys]").hidden = false;
}

function keyInDrawer(event) {
  // Arrows scroll a case; letters walk on.
  if (!MOVES[event.key] || event.key.startsWith("Arrow")) return;
  event.preventDefault();
  step(...MOVES[event.key]);
}

function keyInList(event) {
  if (event.key === "/") {
    event.preventDefault();
    form.querySelector("[data-search]").select();
    return;
  }
  const cell = event.target.closest("[data-cell]");
  if (!cell) {
    // A letter begins wherever the reader was; an arrow there scrolls the page.
    const isLetter = MOVES[event.key] && !event.key.startsWith("Arrow");
    if (isLetter && current && !event.target.closest("[role=separator], dialog")) {
      event.preventDefault();
      focusOn(current);
    }
    return;
  }
  if (event.key === " ") {
    event.preventDefault();
    cell.click();
    return;
  }
  const target = targetOf(event.key, cell);
  if (!target) return;
  event.preventDefault();
  focusOn(target);
}

/** Show what the address says: after the back button, or a link into the page. */
async function route() {
  const href = source.caseIn(location.href);
  if (href) {
    await open(href, { keepsHistory: true });
    return;
  }
  if (drawer.open) close();
  const query = source.query(location.href);
  if (query.toString() === shown) return;
  writeForm(query);
  await show(query, { keepsHistory: true });
}

/** Begin at the cell that was looked at last; who comes back finds the focus there. */
function resume() {
  const { cell: href, isReturning } = source.kept?.() ?? {};
  const cell = href && cellAt(href);
  if (!cell) return;
  if (isReturning) focusOn(cell);
  else makeCurrent(cell);
}

/** Make the results work with those that `from` gives. */
export function setUpMatrix(from) {
  source = from;
  columns = setUpColumns(document.querySelector("[data-columns]"));
  shown = source.isListed ? source.query(location.href).toString() : "";
  readGrid();
  resume();
  setUpForm();
  setUpDrawer();
  setUpKeys();
  setUpOutputs((href) => source.load(href));
  document.addEventListener("click", ({ target }) => {
    const text = target.closest("[data-fold]");
    if (text) text.setAttribute("aria-expanded", String(text.getAttribute("aria-expanded") !== "true"));
  });
  addEventListener("scroll", stickHead, { passive: true });
  addEventListener("resize", stickHead);
  addEventListener("popstate", route);
  // Of a run under way the matrix comes late and grows.
  document.addEventListener("geval:results", readGrid);
  if (!source.isListed) route();
}
