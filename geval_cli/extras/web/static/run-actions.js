// Actions with a run: resume, retry its errors, run it again, name and tag it, delete it.

import { announce } from "./page.js";
import { sentence, send } from "./editor-server.js";

const dialogs = new Map([...document.querySelectorAll("[data-dialog]")].map((dialog) => [dialog.dataset.dialog, dialog]));
let isSending = false;
const refused = document.querySelector("[data-refused]");
const bar = () => document.querySelector("[data-run-actions]");
const address = (rest = "") => `/api/runs/${encodeURIComponent(bar().dataset.runActions)}${rest}`;
const pageOf = (id) => `/runs/${encodeURIComponent(id)}`;

/** Show the buttons, which do nothing without this script; also those that came with a renewed part of the page. */
export function showActions() {
  for (const button of document.querySelectorAll("[data-act], [data-stop]")) button.hidden = false;
}

function refuse(place, body) {
  place.textContent = sentence(body);
  place.hidden = false;
  place.scrollIntoView({ block: "nearest" });
}

/** Send a request, unless one is under way: a second click means the same, and a disabled button loses the focus. */
async function sendOnce(...request) {
  if (isSending) return null;
  isSending = true;
  refused.hidden = true;
  const answer = await send(...request);
  isSending = false;
  return answer;
}

/** Begin a run and go to its page, else say why not. */
async function begin(path, value) {
  const answer = await sendOnce(path, value);
  if (!answer) return;
  if (answer.ok) {
    announce("The run has started.");
    location.assign(pageOf(answer.body.id));
  } else if (answer.body.running) {
    dialogs.get("running").querySelector("[data-open-running]").href = pageOf(answer.body.running);
    open(dialogs.get("running"));
  } else refuse(refused, answer.body);
}

function open(dialog) {
  dialog.querySelector("[data-refusal]").hidden = true;
  dialog.showModal();
}

const acts = {
  resume: () => begin(address("/resume"), {}),
  retry: () => begin(address("/resume"), { retry_errors: true }),
  again: () => begin(address("/again"), { unless_running: true }),
  rename: () => open(dialogs.get("rename")),
  remove: () => open(dialogs.get("remove")),
};

/** What each form sends, and the page to go to after it. */
const forms = {
  rename(form) {
    const lines = form.elements.tags.value.split("\n").map((line) => line.trim()).filter(Boolean);
    const wrong = lines.find((line) => !/^[^=]*[^=\s][^=]*=/.test(line));
    if (wrong) return { problem: { detail: `“${wrong}” is not a tag`, hint: "write name=value" } };
    const tags = Object.fromEntries(lines.map((line) => [line.split("=", 1)[0].trim(), line.slice(line.indexOf("=") + 1).trim()]));
    return { request: [address(), { title: form.elements.title.value, tags }, "PATCH"], next: () => location.pathname + location.search };
  },
  remove: (form) => ({ request: [address(), { keep_answers: form.elements.keep_answers.checked }, "DELETE"], next: () => "/" }),
  running: () => ({ request: [address("/again"), {}], next: ({ id }) => pageOf(id) }),
};

async function stop() {
  const answer = await sendOnce(address("/stop"), {});
  if (answer && !answer.ok) refuse(refused, answer.body);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act], [data-stop], [data-cancel]");
  if (!button) return;
  if (button.dataset.act) acts[button.dataset.act]();
  else if ("stop" in button.dataset) stop();
  else button.closest("dialog").close();
});
for (const form of document.querySelectorAll("[data-form]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { request, next, problem } = forms[form.dataset.form](form);
    const answer = problem ? { body: problem } : await sendOnce(...request);
    if (answer?.ok) location.assign(next(answer.body));
    else if (answer) refuse(form.querySelector("[data-refusal]"), answer.body);
  });
}
showActions();
