// The suite editor: what is typed goes into the model, the server says what is wrong with it, saving writes the file.

import { announce } from "./page.js";
import { bindFields, describeCard, fieldOf, makeCard, openCard, showFields, showProblems } from "./editor-cards.js";
import { isUnsettled, settled } from "./editor-forms.js";
import { LISTS, Suite } from "./editor-model.js";
import { send, sentence } from "./editor-server.js";

const CHECK_AFTER_MS = 350;
const TESTS_A_PAGE = 50;
const LISTED_PROBLEMS = 12;

const root = document.querySelector("[data-editor]");
const part = (name) => root.querySelector(`[data-${name}]`);
const suite = new Suite(JSON.parse(document.getElementById("suite").textContent));
const cards = new Map();
const storageKey = `geval-draft:${suite.path}`;

let problems = [];
let page = 0;
let timer = 0;
let isChecking = false;
let mustCheckAgain = false;
let isSaving = false;
let isStarting = false;
let hasConflict = false;

// Cards

const handlers = {
  onChange: changed,
  onCopy(item) {
    reveal(suite.copy(item));
    announce(`Duplicated ${item.list.slice(0, -1)}.`);
  },
  onRemoveLeftOver(item) {
    const card = cards.get(item.key);
    for (const name of suite.leftOver(item)) item.fields[name] = "";
    showFields(card, item);
    changed();
    announce("Removed what was left over.");
    card.querySelector("select, [data-toggle]").focus();
  },
  onDelete(item) {
    const index = suite[item.list].indexOf(item);
    suite.remove(item);
    const container = root.querySelector(`[data-items="${item.list}"]`);
    draw();
    changed();
    const near = container.children[Math.min(index, container.children.length - 1)];
    (near?.querySelector("[data-toggle], [data-delete], input, textarea") ?? root.querySelector(`[data-add="${item.list}"]`)).focus();
    offerUndo(item, index);
  },
};

function reveal(item) {
  if (item.list === "tests") turnTo(item);
  draw();
  const card = cards.get(item.key);
  openCard(card, true);
  const first = card.querySelector(item.list === "prompts" ? "textarea" : "[data-field] [data-input]");
  first.focus();
  card.scrollIntoView({ block: "nearest" });
  changed();
}

function offerUndo(item, index) {
  const name = item.list.slice(0, -1);
  say("undo", "info", `Deleted ${name} ${index + 1}.`, [["Undo", () => {
    suite[item.list].splice(index, 0, item);
    clear("undo");
    reveal(item);
  }]]);
}

function visibleItems(list) {
  if (list !== "tests") return suite[list];
  const wanted = document.getElementById("test-search").value.trim().toLowerCase();
  if (!wanted) return suite.tests;
  return suite.tests.filter((test) => Object.values(test.fields).some((text) => text.toLowerCase().includes(wanted)));
}

/** Turn to the page that a test is on; a search that hides it is ended. */
function turnTo(test) {
  if (!visibleItems("tests").includes(test)) document.getElementById("test-search").value = "";
  page = Math.floor(visibleItems("tests").indexOf(test) / TESTS_A_PAGE);
}

function turn(steps) {
  page += steps;
  draw();
  document.getElementById("tests-title").scrollIntoView({ block: "start" });
  announce(part("page-text").textContent);
}

function draw() {
  for (const list of LISTS) {
    const items = visibleItems(list);
    if (list === "tests") page = Math.max(0, Math.min(page, Math.ceil(items.length / TESTS_A_PAGE) - 1));
    const shown = list === "tests" ? items.slice(page * TESTS_A_PAGE, (page + 1) * TESTS_A_PAGE) : items;
    const wanted = shown.map((item) => {
      if (!cards.has(item.key)) cards.set(item.key, makeCard(item, handlers));
      return cards.get(item.key);
    });
    const container = root.querySelector(`[data-items="${list}"]`);
    const isSame = wanted.length === container.children.length && wanted.every((card, index) => card === container.children[index]);
    if (!isSame) container.replaceChildren(...wanted);
    const count = root.querySelector(`[data-count="${list}"]`);
    if (count) count.textContent = list === "tests" && suite.testsFile ? "file" : suite[list].length;
    if (list === "tests") drawPager(items.length);
  }
  showAllProblems();
  describe();
}

function drawPager(count) {
  const pages = Math.max(1, Math.ceil(count / TESTS_A_PAGE));
  const shown = (number) => number.toLocaleString("en");
  part("test-pages").hidden = pages < 2;
  part("page-text").textContent = `${shown(page * TESTS_A_PAGE + 1)} to ${shown(Math.min(count, (page + 1) * TESTS_A_PAGE))} of ${shown(count)}`;
  part("page-back").disabled = page === 0;
  part("page-on").disabled = page >= pages - 1;
  part("test-search").hidden = suite.tests.length < 6;
}

function describe() {
  for (const list of LISTS) {
    suite[list].forEach((item, index) => {
      const card = cards.get(item.key);
      if (card?.isConnected && item.isEditable) describeCard(card, item, index + 1, suite);
    });
  }
}

// Changes, problems, state

function changed(item, name) {
  if (name === "evaluation_mode" || !item) describe();
  else if (item.list !== "suite") describeCard(cards.get(item.key), item, suite[item.list].indexOf(item) + 1, suite);
  showState();
  clearTimeout(timer);
  timer = setTimeout(() => { remember(); check(); }, CHECK_AFTER_MS);
}

function remember() {
  try {
    if (suite.isChanged) localStorage.setItem(storageKey, JSON.stringify(suite.snapshot()));
    else localStorage.removeItem(storageKey);
  } catch {
    // No room, or not allowed: leaving the page asks first anyway.
  }
}

async function check() {
  if (isChecking) {
    mustCheckAgain = true;
    return;
  }
  isChecking = true;
  const answer = await send("/suites/check", suite.request());
  isChecking = false;
  if (mustCheckAgain) {
    mustCheckAgain = false;
    check();
    return;
  }
  takeCheck(answer);
}

function takeCheck(answer) {
  if (!answer.ok) {
    say("check", "error", sentence(answer.body));
    return;
  }
  clear("check");
  if (answer.body.changed_on_disk && !hasConflict && !isSaving) sayConflict();
  if (answer.body.problems === null) return;
  takeProblems(answer.body.problems);
  drawDifference(answer.body.difference);
}

function takeProblems(found) {
  problems = found;
  showAllProblems();
  drawProblemList();
  showState();
}

/** Say in each card that is there what is wrong with its item. */
function showAllProblems() {
  const groups = new Map();
  for (const problem of problems) {
    const item = problem.list ? suite[problem.list][problem.index ?? 0] : suite.suite;
    if (item) groups.set(item, [...(groups.get(item) ?? []), [problem.field, problem]]);
  }
  showProblems(root.querySelector('[data-item="suite"]'), groups.get(suite.suite) ?? []);
  for (const list of LISTS) {
    for (const item of suite[list]) {
      const card = cards.get(item.key);
      if (card?.isConnected && item.isEditable) showProblems(card, groups.get(item) ?? []);
    }
  }
}

function drawProblemList() {
  const count = (severity) => problems.filter((problem) => problem.severity === severity).length;
  const words = [[count("error"), "error"], [count("warning"), "warning"]].filter(([number]) => number);
  part("problem-count").textContent = words.length ? words.map(([number, word]) => plural(number, word)).join(", ") : "No problems";
  part("problem-list").replaceChildren(...problems.slice(0, LISTED_PROBLEMS).map((problem) => {
    const line = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.className = `problem-link is-${problem.severity}`;
    button.textContent = problem.message;
    button.addEventListener("click", () => goTo(problem));
    line.append(button);
    return line;
  }));
}

function goTo(problem) {
  const item = problem.list ? suite[problem.list][problem.index ?? 0] : suite.suite;
  if (item && item.list === "tests") turnTo(item);
  draw();
  const card = item === suite.suite || !item ? root.querySelector('[data-item="suite"]') : cards.get(item.key);
  openCard(card, true);
  if (problem.assertion !== null && card.forms) {
    card.forms.assertions.goTo(problem);
    return;
  }
  const field = (problem.field && fieldOf(card, problem.field)) || card;
  field.closest("details")?.setAttribute("open", "");
  const input = field.querySelector("[data-input], [data-toggle], button");
  field.scrollIntoView({ block: "center" });
  input?.focus({ preventScroll: true });
}

function drawDifference(text) {
  const lines = text ? text.split("\n") : [];
  part("changes").hidden = !lines.length;
  const added = lines.filter((line) => line.startsWith("+")).length;
  const removed = lines.filter((line) => line.startsWith("-")).length;
  part("change-count").textContent = `${plural(added, "line")} added, ${removed} removed`;
  part("diff").replaceChildren(...lines.map((line) => {
    const row = document.createElement("span");
    row.className = { "+": "is-added", "-": "is-removed", "@": "is-place" }[line[0]] ?? "";
    row.textContent = `${line}\n`;
    return row;
  }));
}

function showState() {
  const isChanged = suite.isChanged;
  const errors = problems.filter((problem) => problem.severity === "error").length;
  const words = [isSaving ? "Saving…" : isChanged ? "Unsaved changes" : "Saved"];
  if (errors) words.push(plural(errors, "error"));
  const text = words.join(" · ");
  if (part("state").textContent !== text) part("state").textContent = text;
  part("state").classList.toggle("is-wrong", errors > 0);
  part("save").disabled = isSaving || !isChanged;
  part("run").disabled = isSaving || isStarting;
  part("run-label").textContent = isChanged ? "Save and run" : "Run";
}

// Messages above the suite

function say(name, kind, text, actions = []) {
  clear(name);
  const note = document.createElement("div");
  note.className = `note ${kind === "info" ? "" : `is-${kind}`}`;
  note.dataset.message = name;
  note.setAttribute("role", kind === "error" ? "alert" : "status");
  const words = document.createElement("p");
  words.textContent = text;
  note.append(words);
  for (const [label, act] of actions) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button";
    button.textContent = label;
    button.addEventListener("click", act);
    note.append(button);
  }
  part("messages").append(note);
}

function clear(name) {
  part("messages").querySelector(`[data-message="${name}"]`)?.remove();
}

function plural(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

// Saving

async function save({ anyway = false } = {}) {
  if (isSaving) return false;
  isSaving = true;
  showState();
  await settled();
  clearTimeout(timer);
  for (const name of ["save", "undo", "restored"]) clear(name);
  const sent = suite.sending();
  const answer = await send("/suites/save", { ...suite.request(), anyway });
  isSaving = false;
  if (answer.ok) takeSaved(answer.body, sent);
  else if (answer.status === 409) sayConflict(answer.body.digest);
  else if (answer.status === 422 && answer.body.problems) refuseProblems(answer.body);
  else say("save", "error", `Not saved: ${sentence(answer.body)}`);
  showState();
  return answer.ok;
}

function takeSaved(body, sent) {
  suite.saved(body, sent);
  hasConflict = false;
  clear("conflict");
  draw();
  for (const item of LISTS.flatMap((list) => suite[list])) {
    const card = cards.get(item.key);
    if (card && item.isEditable) showFields(card, item);
  }
  showFields(root.querySelector('[data-item="suite"]'), suite.suite);
  takeProblems(body.problems);
  drawDifference("");
  remember();
  announce("Saved.");
}

function refuseProblems(body) {
  takeProblems(body.problems);
  const isReadable = !body.problems.some((problem) => problem.in_field);
  const first = problems.find((problem) => problem.severity === "error");
  if (first) goTo(first);
  const actions = isReadable ? [["Save anyway", () => save({ anyway: true })]] : [];
  say("save", "error", isReadable ? "Not saved: the suite has problems, which a run would refuse." : "Not saved: a field cannot be read. What you typed stays here.", actions);
}

function sayConflict(digest) {
  hasConflict = true;
  say("conflict", "warning", "The file changed on disk since you opened it. Nothing was overwritten.", [
    ["Reload the file", () => { forget(); location.reload(); }],
    ["Keep my version", () => keepMine(digest)],
  ]);
}

/** Go on with this version; saving then overwrites what is on disk now, but not what comes there later. */
async function keepMine(digest) {
  let found = digest;
  if (!found) found = (await send("/suites/save", suite.request())).body.digest;
  if (!found) return;
  suite.base ??= suite.text;
  suite.digest = found;
  hasConflict = false;
  clear("conflict");
  save();
}

function forget() {
  window.removeEventListener("beforeunload", askBeforeLeaving);
  try {
    localStorage.removeItem(storageKey);
  } catch {
    // Then there is nothing to forget either.
  }
}

// Running

/** Begin a run and go to its page; of two runs of one suite at a time the second one is asked about. */
async function run({ anyway = false } = {}) {
  clear("run");
  await settled();
  if (isStarting || (suite.isChanged && !(await save()))) return;
  isStarting = true;
  showState();
  const answer = await send("/api/runs", { config: suite.path, unless_running: !anyway });
  isStarting = false;
  showState();
  if (answer.ok) openRun(answer.body.id);
  else if (answer.body.running) askAboutSecond(answer.body.running);
  else say("run", "error", `Not started: ${sentence(answer.body)}`);
}

function openRun(id) {
  location.assign(`/runs/${encodeURIComponent(id)}`);
}

function askAboutSecond(id) {
  say("run", "warning", "A run of this suite is under way. A second one asks the models the same questions once more, as far as nothing is cached.", [
    ["Open the run under way", () => openRun(id)],
    ["Start another one", () => run({ anyway: true })],
  ]);
  part("messages").querySelector('[data-message="run"] button').focus();
}

// The beginning

function askBeforeLeaving(event) {
  if (suite.isChanged) event.preventDefault();
}

function restoreDraft() {
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem(storageKey));
  } catch {
    return;
  }
  if (!kept || kept.digest !== suite.digest) return;
  suite.restore(kept);
  say("restored", "info", "Your unsaved changes from last time are back.", [["Discard them", () => { forget(); location.reload(); }]]);
}

function begin() {
  restoreDraft();
  bindFields(root.querySelector('[data-item="suite"]'), suite.suite, changed);
  if (suite.testsFile) {
    part("tests-file").textContent = `The tests stand in a file of their own: ${suite.testsFile}`;
    part("tests-file").hidden = false;
    root.querySelector('[data-add="tests"]').hidden = true;
  }
  for (const button of root.querySelectorAll("[data-add]")) {
    button.addEventListener("click", () => reveal(suite.add(button.dataset.add)));
  }
  part("page-back").addEventListener("click", () => turn(-1));
  part("page-on").addEventListener("click", () => turn(1));
  document.getElementById("test-search").addEventListener("input", () => { page = 0; draw(); });
  part("save").addEventListener("click", () => save());
  part("run").addEventListener("click", () => run());
  part("run-list").href = `/?config=${encodeURIComponent(suite.config)}`;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      if (suite.isChanged || isUnsettled()) save();
    }
  });
  window.addEventListener("beforeunload", askBeforeLeaving);
  root.hidden = false;
  draw();
  showState();
  check();
}

begin();
