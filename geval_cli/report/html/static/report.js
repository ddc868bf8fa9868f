// The report's own file as the source of results: its cases are unpacked, chosen, and shown by the same markup as a
// server's. What is packed, and how, stands in report/html/packing.py.

import { setUpMatrix } from "./matrix.js";

const ROWS_PER_PAGE = 50;
const SEVERITY = { failed: 3, error: 2, not_evaluated: 1, passed: 0 };
const WORDS = { failed: "Failed", error: "Error", not_evaluated: "Not evaluated", passed: "Passed" };
const DUST = 1e-10; // a round score but for so much is that score
const WORD = /"([^"]+)"|([^\s"]+)/g;

const page = document.querySelector("[data-results]");
const title = document.title;
let unpacked = null;

// ---- unpacking ----

async function textOf(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}

/** All rows of the file, in the order of the tests; each chunk keeps its own strings. */
async function unpack() {
  const rows = new Map();
  for (const element of document.querySelectorAll("[data-chunk]")) {
    const chunk = JSON.parse(await textOf(element.textContent));
    element.remove();
    for (const found of chunk.cases) {
      const key = `${found.at[0]}.${found.at[1]}`;
      if (!rows.has(key)) rows.set(key, { test: found.at[0], repeat: found.at[1], head: "", cases: new Map() });
      const row = rows.get(key);
      if (found.head) row.head = markup(chunk, found.head);
      row.cases.set(found.at[2], { ...found, chunk });
    }
  }
  return [...rows.values()].sort((one, other) => one.test - other.test || one.repeat - other.repeat);
}

export function allRows() {
  unpacked ??= unpack();
  return unpacked;
}

const markup = (chunk, numbers) => numbers.map((number) => chunk.strings[number]).join("");

function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// ---- choosing ----

/** A text as it is searched: Straße and STRASSE are equal, and so are both small sigmas. */
const folded = (text) => text.toUpperCase().toLowerCase().replaceAll("ς", "σ");

/** For each word the numbers of a chunk's strings that have it. */
function stringsWith(chunk, words) {
  chunk.folded ??= chunk.strings.map(folded);
  return words.map((word) => new Set(chunk.folded.flatMap((text, number) => (text.includes(word) ? [number] : []))));
}

function chooser(query) {
  const words = [...(query.get("q") ?? "").matchAll(WORD)].map((found) => folded(found[1] ?? found[2]));
  const status = query.get("status");
  const metric = query.get("metric");
  const meta = [...query].filter(([name, value]) => name.startsWith("meta.") && value).map(([name, value]) => [name.slice(5), value]);
  const hits = new Map();
  const column = query.get("column");
  const [low, high] = ["low", "high"].map((name) => (query.has(name) ? Number(query.get(name)) : null));
  const isBetween = (score) =>
    typeof score === "number" && (low === null || score >= low - DUST) && (high === null || score < high - DUST || (high === 1 && score <= 1 + DUST));
  return (found) => {
    const { chunk } = found;
    if (column && Number(column) !== found.at[2]) return false;
    if ((low !== null || high !== null) && !isBetween(metric ? found.metrics[metric]?.[1] : found.score)) return false;
    if (metric && !found.metrics[metric]) return false;
    if (status && (metric ? found.metrics[metric][0] : found.status) !== status) return false;
    if (!meta.every(([name, value]) => found.meta[name]?.includes(value))) return false;
    if (!words.length) return true;
    if (!hits.has(chunk)) hits.set(chunk, stringsWith(chunk, words));
    return hits.get(chunk).every((numbers) => found.texts.some((number) => numbers.has(number)));
  };
}

const scoreOf = (found, metric) => (metric ? found.metrics[metric]?.[1] : found.score) ?? Infinity;

/** The rows that have a result as the query wants it, each with the columns that do, sorted. */
async function choose(query) {
  const fits = chooser(query);
  const metric = query.get("metric");
  const chosen = [];
  for (const row of await allRows()) {
    const cases = [...row.cases.values()];
    const fitting = cases.filter(fits);
    const differs = new Set(cases.map((found) => found.status)).size > 1;
    if (fitting.length && (differs || !query.get("differs"))) chosen.push({ row, fitting });
  }
  const keys = {
    status: ({ fitting }) => -Math.max(...fitting.map((found) => SEVERITY[found.status])),
    score: ({ fitting }) => Math.min(...fitting.map((found) => scoreOf(found, metric))),
  };
  const key = keys[query.get("sort")];
  if (!key) return chosen;
  // Infinity minus infinity is no number.
  const order = (one, other) => (one.key === other.key ? 0 : one.key - other.key);
  return chosen.map((item) => ({ ...item, key: key(item) })).sort(order);
}

// ---- showing ----

function cellOf(found, isFitting, metric) {
  const cell = document.createElement("td");
  if (!found) {
    cell.append(element('<span class="cell is-empty muted">–<span class="visually-hidden">no result</span></span>'));
    return cell;
  }
  if (!isFitting) cell.className = "is-aside";
  const link = element(markup(found.chunk, found.cell));
  if (metric && found.metrics[metric]) showMetric(link, metric, ...found.metrics[metric]);
  cell.append(link);
  return cell;
}

/** Show the verdict on one metric where that on the whole case stands. */
function showMetric(link, metric, status) {
  const mark = link.querySelector(".status");
  const chip = [...link.querySelectorAll("[data-metric]")].find((item) => item.dataset.metric === metric);
  link.className = `cell is-${status}`;
  mark.className = `status is-${status}`;
  mark.querySelector("use").setAttribute("href", `#icon-${status}`);
  mark.querySelector(".status-word").textContent = WORDS[status];
  mark.querySelector(".score")?.remove();
  const score = chip?.querySelector("b")?.textContent;
  if (score) mark.append(" ", element(`<span class="score"></span>`));
  if (score) mark.querySelector(".score").textContent = score;
}

function lineOf({ row, fitting }, columns, metric) {
  const line = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.className = "test";
  head.append(element(row.head));
  line.append(head, ...columns.map((column) => cellOf(row.cases.get(column), fitting.includes(row.cases.get(column)), metric)));
  return line;
}

function pagesOf(number, count, query) {
  const link = (to, rel, word) => {
    const made = element(`<a class="button is-quiet" rel="${rel}" data-page="${to}">${word}</a>`);
    made.href = addressOf(withPage(query, to));
    return made;
  };
  const made = element('<nav class="pages" aria-label="Pages"><span class="muted"></span></nav>');
  made.firstElementChild.textContent = `Page ${number.toLocaleString("en")} of ${count.toLocaleString("en")}`;
  if (number > 1) made.prepend(link(number - 1, "prev", "Previous"));
  if (number < count) made.append(link(number + 1, "next", "Next"));
  return made;
}

function foundText(count, query) {
  const rows = `${count.toLocaleString("en")} row${count === 1 ? "" : "s"}`;
  const isChosen = [...query.keys()].some((name) => name !== "sort" && name !== "page");
  const metric = query.get("metric");
  const said = [];
  if (query.has("column")) said.push(`in column ${Number(query.get("column")) + 1}`);
  if (query.has("low")) said.push(`with a score from ${query.get("low")}`);
  if (query.has("high")) said.push(`${query.has("low") ? "to" : "with a score"} ${query.get("high") === "1" ? "" : "below "}${query.get("high")}`);
  const only = said.length ? `; only those ${said.join(" ")}` : "";
  return rows + (isChosen ? " with a result that fits" : "") + (metric ? `; scores are those of ${metric}` : "") + only;
}

async function list(query) {
  const chosen = await choose(query);
  const count = Math.max(Math.ceil(chosen.length / ROWS_PER_PAGE), 1);
  const number = Math.min(Math.max(Number.parseInt(query.get("page") ?? "1", 10) || 1, 1), count);
  const made = page.cloneNode(true);
  made.querySelector("[data-found]").textContent = foundText(chosen.length, query);
  made.querySelector(".pages")?.remove();
  const frame = made.querySelector("[data-matrix-frame]");
  if (!frame) return made;
  const columns = [...frame.querySelectorAll("[data-column]")].map((head) => Number(head.dataset.column));
  const shown = chosen.slice((number - 1) * ROWS_PER_PAGE, number * ROWS_PER_PAGE);
  frame.querySelector("tbody").replaceChildren(...shown.map((item) => lineOf(item, columns, query.get("metric"))));
  if (count > 1) made.append(pagesOf(number, count, query));
  if (!chosen.length) frame.replaceWith(element('<div class="card empty"><h2>Nothing fits</h2><p>No result of this run fits the filter. <a href="#" data-clear>Show all results</a></p></div>'));
  return made;
}

export async function load(href) {
  const [test, repeat, column] = new URLSearchParams(href.slice(1)).get("case").split(".").map(Number);
  const row = (await allRows()).find((item) => item.test === test && item.repeat === repeat);
  const found = row?.cases.get(column);
  const html = found
    ? markup(found.chunk, found.page)
    : '<article class="case" id="case"><h1 id="case-title">This case is not in the file</h1></article>';
  const shown = element(html);
  return { found: shown, title: `${shown.querySelector("#case-title").textContent.trim()} · ${title}` };
}

// ---- addresses ----

const hashOf = (href) => new URL(href).hash;
const addressOf = (query) => `#${query}`;

function withPage(query, number) {
  const changed = new URLSearchParams(query);
  changed.set("page", number);
  return changed;
}

function complain(text) {
  document.querySelector("[data-broken]").hidden = false;
  document.querySelector("[data-broken-text]").textContent = text;
}

if (typeof DecompressionStream === "undefined") {
  complain("This browser is too old to unpack the cases: Chrome 103, Firefox 113 and Safari 16.4 can.");
} else {
  setUpMatrix({
    isListed: false,
    address: addressOf,
    query: (href) => new URLSearchParams(hashOf(href).slice(1)),
    caseIn: (href) => (new URLSearchParams(hashOf(href).slice(1)).has("case") ? hashOf(href) : null),
    list,
    load,
  });
  // Cut short by a mail server or a full disk, the file says so instead of showing less.
  allRows().catch(() => complain("The cases in this file are damaged and cannot be shown."));
}
