"use strict";
// Everything that a model, a config or a server said goes into the page through textContent: as text, never as markup.

const PAGE_SIZE = 100;
const STATUSES = {
  passed: ["✓", "passed"],
  failed: ["✗", "failed"],
  error: ["!", "error"],
  not_evaluated: ["–", "not evaluated"],
};
const SEVERITY = { failed: 0, error: 1, not_evaluated: 2, passed: 3 };

const byId = (id) => document.getElementById(id);
const { run, summary, left_out: leftOut } = JSON.parse(byId("run-data").textContent);
const results = JSON.parse(byId("results-data").textContent);
const columns = run.columns;
const rows = rowsOf(results);
const view = { statuses: new Set(Object.keys(STATUSES)), metric: "", text: "", order: "test", page: 0, rows, open: null };

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// What would reorder, hide or colour the text around it is shown as an escape; joiners within words and emoji stay.
const TRICKS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

function asText(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
  return text.replace(/\r\n/g, "\n").replace(TRICKS, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function number(value, digits = 2) {
  return typeof value === "number" ? value.toFixed(digits) : "none";
}

/** Two decimals, or more where two would look like a full 1, a plain 0, or the other side of the threshold. */
function score(value, threshold = null) {
  const exact = Number(value.toFixed(9));
  const misleads = (shown) =>
    ([0, 1].includes(shown) && shown !== exact) || (threshold !== null && shown < threshold !== exact < threshold);
  let digits = 2;
  while (digits < 9 && misleads(Number(exact.toFixed(digits)))) digits += 1;
  return exact.toFixed(digits);
}

/** US dollars: two decimals from a cent on. */
function money(value) {
  return value === 0 || value >= 0.01 ? `$${value.toFixed(2)}` : `$${+value.toFixed(6)}`;
}

/** What the gate's limit was compared with, in the form that the limit is written in. */
function gateValue(gate) {
  if (gate.actual === null) return "none";
  if (gate.gate.trim().endsWith("%")) return percent(gate.actual);
  return Number.isInteger(gate.actual) ? `${gate.actual}` : score(gate.actual);
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function percent(value) {
  return typeof value === "number" ? `${+(value * 100).toFixed(1)}%` : "none";
}

function columnTitle(column) {
  return [column.prompt_label, column.provider_label].filter(Boolean).join(" × ");
}

// ---- data ----

function rowsOf(all) {
  const found = new Map();
  for (const result of all) {
    const key = `${result.test_index}.${result.repeat_index}`;
    if (!found.has(key)) found.set(key, { test: result.test_index, repeat: result.repeat_index, cases: new Map() });
    found.get(key).cases.set(result.column, result);
  }
  return [...found.values()].sort((one, other) => one.test - other.test || one.repeat - other.repeat);
}

function rowTitle(row) {
  const first = row.cases.values().next().value;
  if (first.description) return asText(first.description);
  const pairs = Object.entries(first.vars).map(([name, value]) => `${name}=${asText(value)}`);
  return (pairs.length ? pairs.join(", ") : asText(first.prompt.rendered)).replace(/\s+/g, " ").slice(0, 160);
}

function flat(assertions) {
  return assertions.flatMap((item) => [item, ...flat(item.assertions)]);
}

function searchText(result) {
  if (!result.searched) {
    const said = flat(result.assertions).flatMap((item) => [item.type, item.metric, item.reason, item.error?.message]);
    const parts = [result.description, result.prompt.rendered, asText(result.output), result.error?.message, ...said];
    const all = [...parts, ...Object.values(result.vars).map(asText)].filter(Boolean).join("\n").toLowerCase();
    Object.defineProperty(result, "searched", { value: all });
  }
  return result.searched;
}

function isWanted(result) {
  return (
    view.statuses.has(result.status) &&
    (!view.metric || flat(result.assertions).some((item) => item.metric === view.metric)) &&
    (!view.text || searchText(result).includes(view.text))
  );
}

function lowest(row, key) {
  return Math.min(...[...row.cases.values()].filter(isWanted).map(key));
}

function caseScore(result) {
  return (view.metric ? result.named_scores[view.metric] : result.score) ?? 2;
}

function select() {
  view.rows = rows.filter((row) => [...row.cases.values()].some(isWanted));
  const keys = { status: (result) => SEVERITY[result.status], score: caseScore };
  const key = keys[view.order];
  if (key) {
    const places = new Map(view.rows.map((row) => [row, lowest(row, key)]));
    view.rows.sort((one, other) => places.get(one) - places.get(other));
  }
  view.page = 0;
  drawMatrix();
}

// ---- summary ----

function drawSummary() {
  const started = new Date(run.started_at);
  byId("origin").textContent = [`run ${run.id}`, started.toLocaleString(), `geval ${run.tool_version}`].join(" · ");
  byId("summary").append(verdictCard(), ...gatesCard(), ...metricsCard(), ...columnsCard(), ...rankingCards(), ...derivedCard(), usageCard());
  const warnings = [...run.warnings];
  if (run.status !== "completed") warnings.unshift(`this run was not finished: ${run.status}`);
  if (leftOut) warnings.unshift(`${leftOut.toLocaleString()} passed cases are not in this file, to keep it usable`);
  byId("warnings").append(...warnings.map((text) => element("li", {}, text)));
  byId("warnings").hidden = !warnings.length;
}

function verdictCard() {
  const counts = { passed: summary.passed, failed: summary.failed, error: summary.errored, not_evaluated: summary.not_evaluated };
  const share = element("div", { class: "share", "aria-hidden": "true" });
  for (const [status, count] of Object.entries(counts)) {
    const part = element("span", { class: `is-${status}` });
    part.style.flexGrow = count;
    share.append(part);
  }
  const listed = Object.entries(counts).map(([status, count]) =>
    element("li", { class: `is-${status}` }, `${STATUSES[status][0]} ${count.toLocaleString()} ${countWord(status, count)}`),
  );
  const bounds = summary.pass_interval;
  const beside = bounds ? `pass rate, 95 % interval ${percent(bounds[0])} to ${percent(bounds[1])}` : "nothing was judged";
  return element(
    "section",
    { class: "card", "aria-label": "Verdict" },
    element("p", { class: "rate" }, percent(summary.pass_rate)),
    element("p", { class: "muted" }, beside),
    share,
    element("ul", { class: "counts" }, ...listed),
  );
}

function countWord(status, count) {
  return status === "error" && count !== 1 ? "errors" : STATUSES[status][1];
}

function table(heads, lines) {
  const head = element("tr", {}, ...heads.map((text, index) => element("th", { scope: "col", class: index ? "number" : null }, text)));
  const body = lines.map((cells) => element("tr", {}, ...cells.map((text, index) => element("td", { class: index ? "number" : null }, text))));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

function gatesCard() {
  const gates = summary.gates ?? [];
  if (!gates.length) return [];
  const lines = gates.map((gate) => [asText(gate.gate), gateValue(gate), STATUSES[gate.status].join(" ")]);
  return [element("section", { class: "card" }, element("h2", {}, "Gates"), table(["gate", "actual", "status"], lines))];
}

function metricsCard() {
  const metrics = Object.entries(summary.metrics);
  if (!metrics.length) return [];
  const lines = metrics.map(([name, metric]) => [
    name,
    typeof metric.mean === "number" ? score(metric.mean) : "none",
    metric.interval ? `${number(metric.interval[0])} to ${number(metric.interval[1])}` : "",
    `${metric.n}`,
    `${metric.errored}`,
  ]);
  return [
    element("section", { class: "card" }, element("h2", {}, "Metrics"), table(["metric", "mean", "95 % interval", "n", "errors"], lines)),
  ];
}

/** The columns side by side, as `summary.columns` has them, and what is shown about their differences. */
function columnsCard() {
  const figures = summary.columns ?? [];
  if (figures.length < 2) return [];
  const metrics = [...new Set(figures.flatMap((column) => Object.keys(column.metrics)))].sort().slice(0, 6);
  const heads = ["column", "passed", "pass rate", ...metrics.map(asText), "errors", "cost", "latency", "p95", "verdict"];
  const lines = figures.map((column) => [
    asText(column.label),
    `${column.passed} of ${column.passed + column.failed}`,
    stat(column.pass_rate, percent),
    ...metrics.map((name) => stat(column.metrics[name], score)),
    `${column.errored}`,
    column.cost_usd === null ? "unknown" : money(column.cost_usd),
    ...[column.latency_ms.median, column.latency_ms.p95].map((value) => (value === null ? "" : `${Math.round(value)} ms`)),
    columnVerdict(column),
  ]);
  return [element("section", { class: "card" }, element("h2", {}, "Columns"), table(heads, lines))];
}

/** A value with its interval, `0.71 (0.60 to 0.82)`. */
function stat(found, shown) {
  if (typeof found?.value !== "number") return "none";
  return shown(found.value) + (found.interval ? ` (${shown(found.interval[0])} to ${shown(found.interval[1])})` : "");
}

/** `better: pass rate`, where a difference from the baseline is shown. */
function columnVerdict(column) {
  if (!column.vs_first) return "baseline";
  const found = [["pass rate", column.vs_first.pass_rate], ...Object.entries(column.vs_first.metrics)];
  const named = (verdict) => found.filter(([, item]) => item?.verdict === verdict).map(([name]) => asText(name));
  const shown = ["better", "worse"].filter((verdict) => named(verdict).length).map((verdict) => `${verdict}: ${named(verdict).join(", ")}`);
  const others = ["undecided", "identical"].filter((verdict) => named(verdict).length);
  return shown.join("; ") || others[0] || "";
}

/** For each metric that outputs were compared by, the columns from the best on. */
function rankingCards() {
  return Object.entries(summary.rankings ?? {}).map(([name, entries]) => {
    const heads = ["column", "rating", "95 % interval", "won", "tied", "lost"];
    const isRanked = entries.every((entry) => entry.rating !== null);
    const lines = entries.map((entry, index) => [
      (isRanked ? `${index + 1}. ` : "") + asText(entry.label),
      isRanked ? entry.rating.toFixed(0) : "none",
      typeof entry.low === "number" ? `${entry.low.toFixed(0)} to ${entry.high.toFixed(0)}` : "",
      ...[entry.wins, entry.ties, entry.losses].map((count) => `${count}`),
    ]);
    const share = summary.order_consistency?.[name];
    const notes = [
      ...(isRanked ? [] : ["no ranking: the comparisons do not connect all columns"]),
      ...(typeof share === "number" ? [`the judge said the same in both orders for ${percent(share)} of the pairs`] : []),
    ];
    const title = element("h2", {}, "Ranking: ", asText(name));
    return element("section", { class: "card" }, title, table(heads, lines), element("p", { class: "muted" }, notes.join("; ")));
  });
}

function derivedCard() {
  const lines = [];
  for (const [name, value] of Object.entries(summary.derived ?? {})) {
    const byColumn = columns.length > 1 ? (summary.derived_by_column?.[name] ?? []) : [];
    byColumn.forEach((own, index) => lines.push([asText(name), columnTitle(columns[index]), own === null ? "none" : score(own)]));
    lines.push([asText(name), "all cases", value === null ? "none" : score(value)]);
  }
  if (!lines.length) return [];
  return [element("section", { class: "card" }, element("h2", {}, "Derived metrics"), table(["derived metric", "of", "value"], lines))];
}

function usageCard() {
  const lines = Object.entries(summary.usage).map(([role, usage]) => [
    role,
    compact.format(usage.requests),
    compact.format(usage.cached_requests),
    `${compact.format(usage.input_tokens)} + ${compact.format(usage.output_tokens)}`,
    usage.cost_usd === null ? "unknown" : money(usage.cost_usd),
  ]);
  return element("section", { class: "card" }, element("h2", {}, "Usage"), table(["", "answers", "cached", "tokens in + out", "cost"], lines));
}

// ---- matrix ----

function drawFilters() {
  for (const [status, [sign, name]] of Object.entries(STATUSES)) {
    const button = element("button", { type: "button", "aria-pressed": "true", class: `is-${status}` }, `${sign} ${name}`);
    button.addEventListener("click", () => {
      const isOn = view.statuses.has(status);
      isOn ? view.statuses.delete(status) : view.statuses.add(status);
      button.setAttribute("aria-pressed", String(!isOn));
      select();
    });
    byId("statuses").append(button, " ");
  }
  const metrics = Object.keys(summary.metrics).map((name) => element("option", { value: name }, name));
  byId("metric").append(element("option", { value: "" }, "all metrics"), ...metrics);
  byId("metric").addEventListener("change", (event) => change({ metric: event.target.value }));
  byId("order").addEventListener("change", (event) => change({ order: event.target.value }));
  byId("text").addEventListener("input", (event) => change({ text: event.target.value.trim().toLowerCase() }));
  byId("heads").append(
    element("th", { scope: "col" }, "test"),
    ...columns.map((column) => element("th", { scope: "col" }, columnTitle(column))),
  );
}

function change(changes) {
  Object.assign(view, changes);
  select();
}

function drawMatrix() {
  const count = Math.max(1, Math.ceil(view.rows.length / PAGE_SIZE));
  const shown = view.rows.slice(view.page * PAGE_SIZE, (view.page + 1) * PAGE_SIZE);
  byId("rows").replaceChildren(...shown.map(matrixRow));
  byId("found").textContent = `${view.rows.length.toLocaleString()} of ${rows.length.toLocaleString()} tests`;
  byId("page").textContent = `page ${view.page + 1} of ${count}`;
  byId("previous").disabled = view.page === 0;
  byId("next").disabled = view.page >= count - 1;
}

function matrixRow(row) {
  const repeat = row.repeat ? `.${row.repeat + 1}` : "";
  const head = element("th", { scope: "row" }, element("span", { class: "muted" }, `#${row.test + 1}${repeat} `), rowTitle(row));
  return element("tr", {}, head, ...columns.map((column) => element("td", {}, matrixCell(row.cases.get(column.index)))));
}

function matrixCell(result) {
  if (!result) return "";
  const excerpt = result.error ? asText(result.error.message) : result.output === null ? "" : asText(result.output).slice(0, 300);
  const cell = element(
    "button",
    { type: "button", class: `cell is-${result.status}`, "data-case": result.id },
    verdict(result),
    element("span", { class: "excerpt" }, excerpt),
  );
  cell.addEventListener("click", () => openCase(result));
  return cell;
}

function verdict(result) {
  const [sign, name] = STATUSES[result.status];
  const shown = result.score === null ? "" : ` ${score(result.score)}`;
  return element("span", { class: `verdict is-${result.status}` }, `${sign} ${name}${shown}`);
}

function moveFocus(event) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const cell = event.target.closest("td");
  const step = steps[event.key];
  if (!cell || !step) return;
  const line = byId("rows").rows[cell.parentElement.sectionRowIndex + step[0]];
  const target = line?.cells[cell.cellIndex + step[1]]?.querySelector("button");
  if (target) {
    target.focus();
    event.preventDefault();
  }
}

// ---- one case ----

function openCase(result) {
  view.open = result;
  const row = rows.find((item) => item.test === result.test_index && item.repeat === result.repeat_index);
  byId("drawer-title").textContent = `#${result.test_index + 1} ${rowTitle(row)}`;
  byId("case").replaceChildren(...caseParts(result));
  if (!byId("drawer").open) byId("drawer").showModal();
  byId("drawer").scrollTop = 0;
}

function caseParts(result) {
  const column = columns.find((item) => item.index === result.column);
  const usage = Object.entries(result.usage).filter(([, amount]) => amount.requests);
  const facts = [
    ["where", column ? columnTitle(column) : ""],
    ["time", `${result.latency_ms === null ? "with a batch" : `${Math.round(result.latency_ms)} ms`}${result.cached ? ", from the cache" : ""}`],
    ["ended", result.finish_reason],
    ...usage.map(([role, amount]) => [role, usageText(amount)]),
    ...Object.entries(result.metadata ?? {}).map(([name, value]) => [name, asText(value)]),
  ];
  return [
    element("div", {}, verdict(result), factList(facts)),
    result.error ? errorPart(result.error) : null,
    part("Output", result.output === null ? "(none)" : asText(result.output) || "(empty)"),
    ...result.assertions.map(assertionPart),
    ...promptParts(result.prompt.rendered),
    ...Object.entries(result.vars).map(([name, value]) => part(`Variable ${name}`, asText(value))),
  ].filter(Boolean);
}

function usageText(amount) {
  const cost = amount.cost_usd === null ? "cost unknown" : money(amount.cost_usd);
  const cached = amount.cached_requests ? ` (${amount.cached_requests} cached)` : "";
  return `${amount.requests} answers${cached}, ${amount.input_tokens} tokens in, ${amount.output_tokens} out, ${cost}`;
}

function part(title, text) {
  return element("section", {}, element("h3", {}, asText(title)), element("pre", { dir: "auto" }, text));
}

function factList(facts) {
  const known = facts.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return element("dl", { class: "facts" }, ...known.flatMap(([name, value]) => [element("dt", {}, asText(name)), element("dd", {}, asText(value))]));
}

function errorPart(error) {
  const section = element("section", { class: "card is-error" }, element("p", { class: "said" }, asText(`${error.type}: ${error.message}`)));
  if (error.hint) section.append(element("p", { class: "said muted" }, asText(error.hint)));
  if (error.raw) section.append(element("pre", { dir: "auto" }, asText(error.raw)));
  return section;
}

function promptParts(rendered) {
  let messages = null;
  try {
    messages = JSON.parse(rendered);
  } catch {
    messages = null;
  }
  const isChat = Array.isArray(messages) && messages.length > 0 && messages.every((item) => item && typeof item.role === "string");
  if (!isChat) return rendered ? [part("Prompt", asText(rendered))] : [];
  return messages.map((item) => part(`Prompt: ${item.role}`, asText(item.content ?? "")));
}

function assertionPart(item) {
  const [sign, name] = STATUSES[item.status];
  const title = element(
    "p",
    {},
    element("span", { class: `verdict is-${item.status}` }, `${sign} ${name} `),
    element("strong", {}, [item.type, item.metric].filter(Boolean).join(" ")),
  );
  const made = element("section", { class: "card assertion" }, title, factList(assertionFacts(item)));
  if (item.reason) made.append(element("p", { class: "said", dir: "auto" }, asText(item.reason)));
  if (item.error) made.append(errorPart(item.error));
  const parts = Array.isArray(item.detail.parts) && item.detail.parts.length ? item.detail.parts : [item.detail];
  for (const detail of parts) made.append(...judgeParts(detail, parts.length > 1));
  made.append(...item.assertions.map(assertionPart));
  return made;
}

function assertionFacts(item) {
  const threshold = item.threshold === null ? null : `${item.threshold}${item.threshold_is_default ? " (default)" : ""}`;
  const usage = item.usage.requests ? usageText(item.usage) : null;
  return [
    ["score", item.score === null ? null : score(item.score, item.threshold)],
    ["threshold", threshold],
    ["weight", item.weight === 1 ? null : String(item.weight)],
    ["judging", usage],
    ["where", item.location],
  ];
}

function judgeParts(detail, isOneOfMany) {
  const made = [];
  const range = Array.isArray(detail.score_range) ? ` in ${detail.score_range.join(" to ")}` : "";
  const rating = typeof detail.rating === "number" ? `${+detail.rating.toFixed(4)}${range}` : null;
  const coverage = typeof detail.coverage === "number" ? `, coverage ${number(detail.coverage)}` : "";
  const samples = typeof detail.requested === "number" ? `, ${detail.valid} of ${detail.requested} readable` : "";
  if (isOneOfMany) made.push(element("p", { class: "said" }, [detail.criteria, detail.reason].filter(Boolean).map(asText).join("\n")));
  made.push(
    factList([
      ["rating", rating],
      ["estimator", detail.estimator ? `${detail.estimator}${coverage}${samples}` : null],
      ["judge", detail.judge],
      ["source", detail.source_from],
      ["note", detail.fallback],
    ]),
  );
  const masses = massesOf(detail.distribution);
  if (masses.length > 1) made.push(distribution(masses));
  if (Array.isArray(detail.evaluation_steps) && detail.evaluation_steps.length) {
    const steps = detail.evaluation_steps.map((step) => element("li", {}, asText(step)));
    made.push(element("details", {}, element("summary", {}, "evaluation steps"), element("ol", { class: "steps" }, ...steps)));
  }
  return made;
}

function massesOf(value) {
  if (!value || typeof value !== "object") return [];
  const pairs = Array.isArray(value) ? value : Object.entries(value);
  return pairs
    .map(([rating, mass]) => [Number(rating), mass])
    .filter(([rating, mass]) => Number.isFinite(rating) && Number.isFinite(mass))
    .sort((one, other) => one[0] - other[0]);
}

function distribution(masses) {
  const space = "http://www.w3.org/2000/svg";
  const width = 420;
  const step = width / masses.length;
  const most = Math.max(...masses.map(([, mass]) => mass)) || 1;
  const chart = document.createElementNS(space, "svg");
  const said = masses.map(([rating, mass]) => `${rating}: ${percent(mass)}`).join(", ");
  const attributes = { class: "bars", viewBox: `0 0 ${width} 120`, role: "img", "aria-label": `Ratings: ${said}` };
  for (const [name, value] of Object.entries(attributes)) chart.setAttribute(name, value);
  masses.forEach(([rating, mass], index) => {
    const height = (mass / most) * 76;
    const middle = index * step + step / 2;
    chart.append(
      shape(space, "rect", { x: index * step + 2, y: 98 - height, width: Math.max(step - 4, 1), height, rx: 2 }),
      shape(space, "text", { x: middle, y: 114 }, `${+rating.toFixed(2)}`),
      shape(space, "text", { x: middle, y: 92 - height }, percent(mass)),
    );
  });
  return chart;
}

function shape(space, name, attributes, text = "") {
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function openNeighbour(step) {
  const shown = view.rows.flatMap((row) => [...row.cases.values()].filter(isWanted));
  const next = shown[shown.indexOf(view.open) + step];
  if (next) openCase(next);
}

function closeDrawer() {
  byId("drawer").close();
  const cells = [...byId("rows").querySelectorAll("[data-case]")];
  cells.find((cell) => cell.dataset.case === view.open?.id)?.focus();
}

function switchTheme() {
  const isDark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
}

byId("previous").addEventListener("click", () => { view.page -= 1; drawMatrix(); });
byId("next").addEventListener("click", () => { view.page += 1; drawMatrix(); });
byId("rows").addEventListener("keydown", moveFocus);
byId("close").addEventListener("click", closeDrawer);
byId("drawer").addEventListener("cancel", (event) => { event.preventDefault(); closeDrawer(); });
byId("drawer").addEventListener("click", (event) => { if (event.target === byId("drawer")) closeDrawer(); });
byId("drawer").addEventListener("keydown", (event) => {
  if (event.key === "ArrowRight") openNeighbour(1);
  if (event.key === "ArrowLeft") openNeighbour(-1);
});
byId("drawer-previous").addEventListener("click", () => openNeighbour(-1));
byId("drawer-next").addEventListener("click", () => openNeighbour(1));
byId("theme").addEventListener("click", switchTheme);
drawSummary();
drawFilters();
select();
