// The report's own file as the source of results: its cases are unpacked, chosen, and shown by the same markup as a
// server's. What is packed, and how, stands in extras/html/file.py.

import { setUpMatrix } from "./matrix.js";
import { make, offerFile } from "./page.js";

const ROWS_PER_PAGE = 50;
const SEVERITY = { failed: 3, error: 2, not_evaluated: 1, passed: 0 };
const WORDS = { failed: "Failed", error: "Error", not_evaluated: "Not evaluated", passed: "Passed" };
const REPEATS = {
  passed: "whose repeats all passed",
  mixed: "whose repeats had different verdicts",
  failed: "whose repeats all failed",
};
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

/** All tests of the file in their order, with their cases by column; each chunk keeps its own strings. */
async function unpack() {
  const rows = new Map();
  for (const element of document.querySelectorAll("[data-chunk]")) {
    const chunk = JSON.parse(await textOf(element.textContent));
    chunk.exported = element.nextElementSibling;
    element.remove();
    for (const [number, found] of chunk.cases.entries()) {
      const [test, , column] = found.at;
      if (!rows.has(test)) rows.set(test, { test, head: "", cases: new Map() });
      const row = rows.get(test);
      if (found.head) row.head = markup(chunk, found.head);
      row.cases.set(column, [...(row.cases.get(column) ?? []), { ...found, chunk, number }]);
    }
  }
  return [...rows.values()].sort((one, other) => one.test - other.test);
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

/** A text as a server searches it: Straße, STRAẞE and STRASSE are equal, and so are both small sigmas; ı is no i. */
function folded(text) {
  const parts = text.toLowerCase().split("ı");
  return parts.map((part) => part.toUpperCase().toLowerCase()).join("ı").replaceAll("ς", "σ");
}

/** For each word the numbers of a chunk's strings that have it. */
function stringsWith(chunk, words) {
  chunk.folded ??= chunk.strings.map(folded);
  return words.map((word) => new Set(chunk.folded.flatMap((text, number) => (text.includes(word) ? [number] : []))));
}

const isFrom = (number, low) => low === null || number >= low - DUST;
const isBelow = (number, high) => high === null || number < high - DUST;

/** A number that a query names; null where it names none, as in what makes no sense. */
function numberIn(query, name, isWhole = false) {
  const text = query.get(name) ?? "";
  const isNumber = isWhole ? /^\d{1,9}$/.test(text) : text.trim() && Number.isFinite(Number(text));
  return isNumber ? Number(text) : null;
}

const endsIn = (query, names) => names.map((name) => numberIn(query, name));

const casesOf = (row) => [...row.cases.values()].flat();

/** Whether the repeats of a test in one column all passed, all failed, or did both; of each test with several. */
function repeatsOf(rows) {
  const verdicts = new Map();
  for (const row of rows) {
    for (const [column, repeats] of row.cases) {
      const judged = repeats.map(({ status }) => status).filter((status) => status === "passed" || status === "failed");
      if (judged.length > 1) verdicts.set(`${row.test} ${column}`, new Set(judged).size > 1 ? "mixed" : judged[0]);
    }
  }
  return verdicts;
}

/** The repeats of a test whose columns do not all have the same status. */
function differing(cases) {
  const first = new Map();
  const differs = new Set();
  for (const { at: [, repeat], status } of cases) {
    if (!first.has(repeat)) first.set(repeat, status);
    if (first.get(repeat) !== status) differs.add(repeat);
  }
  return differs;
}

function chooser(query, rows) {
  const words = [...(query.get("q") ?? "").matchAll(WORD)].map((found) => folded(found[1] ?? found[2]));
  const status = query.get("status") in SEVERITY ? query.get("status") : null;
  const metric = query.get("metric");
  const meta = [...query].filter(([name, value]) => name.startsWith("meta.") && value).map(([name, value]) => [name.slice(5), value]);
  const hits = new Map();
  const column = numberIn(query, "column", true);
  const test = numberIn(query, "test", true);
  const repeats = query.get("repeats") in REPEATS ? query.get("repeats") : null;
  const verdicts = repeats ? repeatsOf(rows) : null;
  const [low, high] = endsIn(query, ["low", "high"]);
  const isBetween = (score) => typeof score === "number" && isFrom(score, low) && (isBelow(score, high) || (high === 1 && score <= 1 + DUST));
  const [labelLow, labelHigh] = metric ? endsIn(query, ["label_low", "label_high"]) : [null, null];
  const isLabelled = (label) => typeof label === "number" && isFrom(label, labelLow) && isBelow(label, labelHigh);
  return (found) => {
    const { chunk } = found;
    if (column !== null && column !== found.at[2]) return false;
    if (test !== null && test !== found.at[0]) return false;
    if (repeats && verdicts.get(`${found.at[0]} ${found.at[2]}`) !== repeats) return false;
    if ((labelLow !== null || labelHigh !== null) && !isLabelled(found.labels?.[metric])) return false;
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
  const rows = await allRows();
  const fits = chooser(query, rows);
  const metric = query.get("metric");
  const chosen = [];
  for (const row of rows) {
    const cases = casesOf(row);
    const repeats = query.get("differs") ? differing(cases) : null;
    const fitting = cases.filter((found) => (!repeats || repeats.has(found.at[1])) && fits(found));
    if (fitting.length) chosen.push({ row, fitting });
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

const verdictOf = (found, metric) => found.metrics[metric]?.[0] ?? found.status;

/** The repeats of a test in one column: the worst one that fits, and how many passed. */
function cellOf(repeats, fitting, metric) {
  const cell = document.createElement("td");
  if (!repeats) {
    cell.append(element('<span class="cell muted">–<span class="visually-hidden">no result</span></span>'));
    return cell;
  }
  const own = repeats.filter((found) => fitting.includes(found));
  if (!own.length) cell.className = "is-aside";
  const worse = (one, other) => (SEVERITY[verdictOf(other, metric)] > SEVERITY[verdictOf(one, metric)] ? other : one);
  const found = (own.length ? own : repeats).reduce(worse);
  const link = element(markup(found.chunk, found.cell));
  if (metric && found.metrics[metric]) showMetric(link, found, metric);
  if (repeats.length > 1) link.querySelector(".status").after(tallyOf(repeats, metric));
  cell.append(link);
  return cell;
}

function tallyOf(repeats, metric) {
  const count = (status) => repeats.filter((found) => verdictOf(found, metric) === status).length;
  const isFlaky = count("passed") > 0 && count("failed") > 0;
  const words = isFlaky ? " flaky" : make("span", { class: "visually-hidden" }, " repeats passed");
  return make("span", { class: `chip tally${isFlaky ? " is-flaky" : ""}` }, `${count("passed")}/${repeats.length}`, words);
}

/** Show the verdict on one metric where that on the whole case stands. */
function showMetric(link, found, metric) {
  const [status, , reason, shownScore] = found.metrics[metric];
  const mark = link.querySelector(".status");
  link.className = `cell is-${status}`;
  mark.className = `status is-${status}`;
  mark.querySelector("use").setAttribute("href", `#icon-${status}`);
  mark.querySelector(".status-word").textContent = WORDS[status];
  mark.querySelector(".score")?.remove();
  const score = found.chunk.strings[shownScore];
  if (score) mark.append(" ", make("span", { class: "score" }, score));
  const said = link.querySelector(".cell-reason") ?? element('<span class="cell-reason" dir="auto"></span>');
  said.textContent = found.chunk.strings[reason];
  if (!said.textContent) said.remove();
  else if (!said.isConnected && !said.parentElement) link.querySelector(".cell-chips").after(said);
}

/** As the server writes a share: whole per cents, but for what would look like all or none. */
function percentOf(part, whole) {
  const share = (100 * part) / whole;
  if (part === 0 || part === whole || ![0, 100].includes(Math.round(share))) return `${Math.round(share)} %`;
  if (share < 0.1) return "<0.1 %";
  return share > 99.9 ? ">99.9 %" : `${share.toFixed(1)} %`;
}

/** Let the heads of the columns, and the counts by status, say what they say of the chosen metric: of the whole run. */
function showHeads(made, metric) {
  const counts = Object.fromEntries(Object.keys(SEVERITY).map((status) => [status, 0]));
  const verdicts = JSON.parse(document.getElementById("verdict-data").textContent)[metric] ?? {};
  for (const head of made.querySelectorAll("[data-column]")) {
    const own = { passed: 0, failed: 0, ...verdicts[head.dataset.column] };
    for (const [status, count] of Object.entries(own)) counts[status] += count;
    const judged = own.passed + own.failed;
    for (const [name, text] of [["[data-head-rate]", judged ? percentOf(own.passed, judged) : "n/a"], ["[data-head-n]", judged.toLocaleString("en")]]) {
      const place = head.querySelector(name);
      if (place) place.textContent = text;
    }
    for (const mean of head.querySelectorAll("[data-mean]")) mean.hidden = mean.dataset.mean !== metric;
  }
  made.dataset.counts = JSON.stringify(counts);
}

function lineOf({ row, fitting }, columns, metric) {
  const line = document.createElement("tr");
  line.innerHTML = row.head;
  line.append(...columns.map((column) => cellOf(row.cases.get(column), fitting, metric)));
  if (columns.length > 1) columns.forEach((column, place) => { line.cells[line.cells.length - columns.length + place].dataset.name = columnName(column); });
  return line;
}

function pagesOf(number, count, query) {
  const link = (to, rel, word) => {
    const there = new URLSearchParams(query);
    there.set("page", to);
    return make("a", { class: "button is-quiet", rel, "data-page": to, href: addressOf(there) }, word);
  };
  return make(
    "nav", { class: "pages", "aria-label": "Pages" },
    ...(number > 1 ? [link(number - 1, "prev", "Previous")] : []),
    make("span", { class: "muted" }, `Page ${number.toLocaleString("en")} of ${count.toLocaleString("en")}`),
    ...(number < count ? [link(number + 1, "next", "Next")] : []),
  );
}

/** A range of numbers in words, as far as it has ends. */
function rangeWords(what, low, high) {
  const said = low === null ? [] : [`${what} from ${low.toFixed(2)}`];
  if (high !== null) said.push(`${low === null ? what : "to"} ${high === 1 ? "" : "below "}${high.toFixed(2)}`);
  return said;
}

/** The name of a column as its head has it. */
function columnName(index) {
  const head = [...page.querySelectorAll("[data-column]")].find((item) => Number(item.dataset.column) === index);
  const names = head ? [...head.querySelectorAll(".column-prompt, .column-provider")].map((item) => item.textContent) : [];
  return names.filter(Boolean).join(" × ") || `column ${index + 1}`;
}

/** What the mark of a drawing chose beside status and metric, in words. */
function choiceWords(query) {
  const said = [];
  const [test, column] = ["test", "column"].map((name) => numberIn(query, name, true));
  if (test !== null) said.push(`of test ${test + 1}`);
  if (query.get("repeats") in REPEATS) said.push(REPEATS[query.get("repeats")]);
  if (column !== null) said.push(`in ${columnName(column)}`);
  const scores = rangeWords("with a score", ...endsIn(query, ["low", "high"]));
  const [low, high] = endsIn(query, ["label_low", "label_high"]);
  const labels = low === 0 && high === null ? ["with human labels"] : rangeWords(`${scores.length ? "and " : ""}with a mean label`, low, high);
  return [...said, ...scores, ...(query.has("metric") ? labels : [])];
}

function foundText(count, query) {
  const rows = `${count.toLocaleString("en")} test${count === 1 ? "" : "s"}`;
  const isChosen = [...query.keys()].some((name) => name !== "sort" && name !== "page");
  const metric = query.get("metric");
  const said = choiceWords(query);
  const only = said.length ? `; only those ${said.join(" ")}` : "";
  return rows + (isChosen ? " with a matching result" : "") + (metric ? `; verdicts are those on ${metric}` : "") + only;
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
  if (query.get("metric")) showHeads(made, query.get("metric"));
  if (count > 1) made.append(pagesOf(number, count, query));
  const exports = made.querySelector(".export");
  if (exports) exports.hidden = !chosen.length;
  if (!chosen.length) frame.replaceWith(element('<div class="card empty"><h2>No matches</h2><p>No result of this run matches the filter. <a href="#" data-clear>Show all results</a></p></div>'));
  return made;
}

export async function load(href) {
  const [test, repeat, column] = new URLSearchParams(href.slice(1)).get("case").split(".").map(Number);
  const row = (await allRows()).find((item) => item.test === test);
  const found = row?.cases.get(column)?.find(({ at }) => at[1] === repeat);
  const html = found
    ? markup(found.chunk, found.page)
    : '<article class="case" id="case"><h1 id="case-title">This case is not in the file</h1></article>';
  const shown = element(html);
  return { found: shown, title: `${shown.querySelector("#case-title").textContent.trim()} · ${title}` };
}

// ---- exporting ----

const { name: fileName, csv_start: csvStart, conversation: conversationHead, end: endHead } = JSON.parse(document.getElementById("export-data").textContent);

/** What is packed of a chunk's cases for files; unpacked when it is first asked for. */
async function unpackExported(chunk) {
  if (chunk.exported instanceof Element) chunk.exported = (await textOf(chunk.exported.textContent)).split("\n");
}

/** The cases that fit as files have them, in the order of the list. */
async function fittingCases(query) {
  const found = (await choose(query)).flatMap(({ fitting }) => [...fitting].sort((one, other) => one.at[1] - other.at[1] || one.at[2] - other.at[2]));
  for (const chunk of new Set(found.map((item) => item.chunk))) await unpackExported(chunk);
  return found.map(({ chunk, number }) => {
    const [fixed, named, turns, end] = JSON.parse(chunk.exported[2 * number + 1]);
    return { line: chunk.exported[2 * number], fixed, named, turns, end };
  });
}

/** A CSV file in parts, byte for byte what a server makes: every cell was quoted and made harmless when it was packed. */
function csvParts(cases) {
  const groups = [0, 1, 2, 3].map((place) => [...new Set(cases.flatMap(({ named }) => Object.keys(named[place])))]);
  const hasTurns = cases.some(({ turns }) => turns);
  const hasEnds = cases.some(({ end }) => end);
  const line = (start, cells, turns, end) => `${[start, ...cells, ...(hasTurns ? [turns] : []), ...(hasEnds ? [end] : [])].join(",")}\r\n`;
  const rows = cases.map(({ fixed, named, turns, end }) => line(fixed, groups.flatMap((names, place) => names.map((name) => named[place][name] ?? "")), turns, end));
  return [line(csvStart, groups.flat(), conversationHead, endHead), ...rows];
}

const EXPORTS = {
  csv: { type: "text/csv", parts: csvParts },
  jsonl: { type: "application/x-ndjson", parts: (cases) => cases.map(({ line }) => `${line}\n`) },
};

/** Give what fits the filter as a file. */
async function exportAs(kind) {
  const { type, parts } = EXPORTS[kind];
  const query = new URLSearchParams(document.querySelector("[data-results]").dataset.shown ?? "");
  offerFile(`${fileName}.${kind}`, type, parts(await fittingCases(query)));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-export]");
  if (button) exportAs(button.dataset.export).catch(() => complain("The cases in this file are damaged and cannot be exported."));
});

// ---- addresses ----

const hashOf = (href) => new URL(href).hash;
const addressOf = (query) => `#${query}`;

function complain(text) {
  document.querySelector("[data-broken]").hidden = false;
  document.querySelector("[data-broken-text]").textContent = text;
}

if (typeof DecompressionStream === "undefined") {
  complain("This browser is too old to unpack the cases: use Chrome 103, Firefox 113, Safari 16.4 or newer.");
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
