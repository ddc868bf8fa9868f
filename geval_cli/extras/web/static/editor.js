// The suite editor: the text of the file in a code editor, a form beside it, and what the server says is wrong.

import { announce, keep, kept, make, makeButton } from "./page.js";
import { CodeEditor } from "./editor-code.js";
import { Form } from "./editor-form.js";
import { send, sentence } from "./editor-server.js";
import { readSuite } from "./editor-yaml.js";

const CHECK_AFTER_MS = 350;
const LISTED_PROBLEMS = 12;
const LARGEST_FORM = 500_000; // characters; reading a larger text after each key would be felt

const root = document.querySelector("[data-editor]");
const part = (name) => root.querySelector(`[data-${name}]`);
const suite = JSON.parse(document.getElementById("suite").textContent);
const storageKey = `geval-draft:${suite.path}`;

let saved = suite.text;
let problems = [];
let timer = 0;
let checks = 0;
let isChecking = false;
let isSaving = false;
let isStarting = false;
let hasConflict = false;

root.hidden = false;
const form = new Form(part("form"), { change: (change) => code.change(change), goTo: (...place) => code.goTo(...place) });
const code = new CodeEditor(part("code"), suite.text, { label: `YAML of ${suite.path}`, onChange: changed });

const isChanged = () => code.text !== saved;

function showForm() {
  const text = code.plainText;
  part("form-note").hidden = text.length <= LARGEST_FORM;
  part("form").hidden = text.length > LARGEST_FORM;
  if (text.length <= LARGEST_FORM) form.show(readSuite(text));
}

function changed({ isFromForm }) {
  showState();
  clearTimeout(timer);
  if (isFromForm) showForm();
  timer = setTimeout(() => {
    if (!isFromForm) showForm();
    remember();
    check();
  }, CHECK_AFTER_MS);
}

function remember() {
  keep(storageKey, isChanged() ? { digest: suite.digest, text: code.text } : null);
}

// Problems and state

async function check() {
  checks += 1;
  if (isChecking) return; // a large suite takes seconds: the check under way is followed by one of what is there then
  isChecking = true;
  const own = checks;
  const answer = await send("/suites/check", { path: suite.path, digest: suite.digest, text: code.text });
  isChecking = false;
  if (own !== checks) {
    check();
    return;
  }
  if (!answer.ok) {
    say("check", "error", sentence(answer.body));
    return;
  }
  clear("check");
  if (answer.body.changed_on_disk && !hasConflict && !isSaving) sayConflict();
  takeProblems(answer.body.problems);
  drawDifference(answer.body.difference);
}

function takeProblems(found) {
  problems = found;
  code.showProblems(problems);
  form.showProblems(problems);
  const count = (severity) => problems.filter((problem) => problem.severity === severity).length;
  const words = [[count("error"), "error"], [count("warning"), "warning"]].filter(([number]) => number);
  part("problem-count").textContent = words.length ? words.map(([number, word]) => plural(number, word)).join(", ") : "No problems";
  part("problem-list").replaceChildren(...problems.slice(0, LISTED_PROBLEMS).map((problem) => {
    const place = problem.file ? `${problem.file}: ` : problem.line ? `${problem.line}: ` : "";
    const words = place + problem.message + (problem.hint ? `: ${problem.hint}` : "");
    return make("li", {}, makeButton(words, () => goTo(problem), `problem-link is-${problem.severity}`));
  }));
  showState();
}

function goTo(problem) {
  if (problem.line && !problem.file) code.goTo(code.offsetOf(problem.line, problem.column ?? 1));
}

function drawDifference(text) {
  const lines = text ? text.split("\n") : [];
  part("changes").hidden = !lines.length;
  const added = lines.filter((line) => line.startsWith("+")).length;
  const removed = lines.filter((line) => line.startsWith("-")).length;
  part("change-count").textContent = `${plural(added, "line")} added, ${removed} removed`;
  part("diff").replaceChildren(...lines.map((line) => {
    const kind = { "+": "is-added", "-": "is-removed", "@": "is-place" }[line[0]] ?? null;
    return make("span", { class: kind }, `${line}\n`);
  }));
}

function showState() {
  const errors = problems.filter((problem) => problem.severity === "error").length;
  const words = [isSaving ? "Saving…" : isChanged() ? "Unsaved changes" : "Saved"];
  if (errors) words.push(plural(errors, "error"));
  const text = words.join(" · ");
  if (part("state").textContent !== text) part("state").textContent = text;
  part("state").classList.toggle("is-wrong", errors > 0);
  part("save").disabled = isSaving || !isChanged();
  part("run").disabled = isSaving || isStarting;
  part("run-label").textContent = isChanged() ? "Save and run" : "Run";
}

const plural = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

function say(name, kind, text, actions = []) {
  clear(name);
  const attributes = { class: `note ${kind === "info" ? "" : `is-${kind}`}`, "data-message": name, role: kind === "error" ? "alert" : "status" };
  part("messages").append(make("div", attributes, make("p", {}, text), ...actions.map((action) => makeButton(...action))));
}

function clear(name) {
  part("messages").querySelector(`[data-message="${name}"]`)?.remove();
}

// Saving

async function save({ anyway = false } = {}) {
  if (isSaving) return false;
  const broken = form.broken;
  if (broken) {
    say("save", "error", "Not saved: a field of the form is not valid JSON, so it is not in the YAML.");
    broken.closest("details")?.setAttribute("open", "");
    broken.focus();
    return false;
  }
  isSaving = true;
  showState();
  clearTimeout(timer);
  for (const name of ["save", "restored"]) clear(name);
  const sent = code.text;
  const answer = await send("/suites/save", { path: suite.path, digest: suite.digest, text: sent, anyway });
  isSaving = false;
  if (answer.ok) takeSaved(answer.body, sent);
  else if (answer.status === 409) sayConflict(answer.body.digest);
  else if (answer.status === 422 && answer.body.problems) refuseProblems(answer.body);
  else say("save", "error", `Not saved: ${sentence(answer.body)}`);
  showState();
  return answer.ok;
}

function takeSaved(body, sent) {
  saved = sent;
  suite.digest = body.digest;
  hasConflict = false;
  clear("conflict");
  checks += 1; // what is still being checked was made from the file of before
  takeProblems(body.problems);
  drawDifference("");
  remember();
  if (isChanged()) check();
  announce("Saved.");
}

function refuseProblems(body) {
  takeProblems(body.problems);
  const first = problems.find((problem) => problem.severity === "error");
  if (first) goTo(first);
  const actions = body.is_readable ? [["Save anyway", () => save({ anyway: true })]] : [];
  say("save", "error", body.is_readable ? "Not saved: the suite has problems, so it could not run." : "Not saved: the text is not valid YAML. Your text is still here.", actions);
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
  const found = digest ?? (await send("/suites/save", { path: suite.path, digest: suite.digest, text: code.text })).body.digest;
  if (!found) return;
  suite.digest = found;
  hasConflict = false;
  clear("conflict");
  save();
}

function forget() {
  window.removeEventListener("beforeunload", askBeforeLeaving);
  keep(storageKey, null);
}

// Running

/** Begin a run and go to its page; of two runs of one suite at a time the second one is asked about. */
async function run({ anyway = false } = {}) {
  clear("run");
  if (isStarting || (isChanged() && !(await save()))) return;
  isStarting = true;
  showState();
  const answer = await send("/api/runs", { config: suite.path, unless_running: !anyway });
  isStarting = false;
  showState();
  const { id, running } = answer.body;
  if (answer.ok) openRun(id);
  else if (running) {
    say("run", "warning", "A run of this suite is in progress. A second run sends the same requests again, except those that are cached.", [
      ["Open the run in progress", () => openRun(running)],
      ["Start another one", () => run({ anyway: true })],
    ]);
    part("messages").querySelector('[data-message="run"] button').focus();
  } else say("run", "error", `Not started: ${sentence(answer.body)}`);
}

function openRun(id) {
  location.assign(`/runs/${encodeURIComponent(id)}`);
}

// The beginning

function askBeforeLeaving(event) {
  if (isChanged()) event.preventDefault();
}

function restoreDraft() {
  const draft = kept(storageKey);
  if (typeof draft?.text !== "string" || draft.text === suite.text) return;
  const discard = ["Discard them", () => { forget(); location.reload(); }];
  if (draft.digest === suite.digest) {
    code.replace(draft.text);
    say("restored", "info", "Your unsaved changes from last time are back.", [discard]);
  } else {
    say("restored", "warning", "You have unsaved changes from last time, made to an earlier version of this file.", [
      ["Show them", () => { clear("restored"); code.replace(draft.text); }],
      discard,
    ]);
  }
}

restoreDraft();
part("save").addEventListener("click", () => save());
part("run").addEventListener("click", () => run());
part("run-list").href = `/?config=${encodeURIComponent(suite.config)}`;
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "s") {
    event.preventDefault();
    if (isChanged()) save();
  }
});
window.addEventListener("beforeunload", askBeforeLeaving);
showForm();
showState();
check();
