// The form that makes a new suite.

import { send } from "./editor-server.js";

const form = document.querySelector("[data-new-suite]");
const problem = form.querySelector("#new-problem");
const input = form.elements.name;

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await send("/suites/new", { path: input.value });
  if (answer.ok) {
    location.assign(`/suites/edit?path=${encodeURIComponent(answer.body.path)}`);
    return;
  }
  problem.textContent = answer.body.hint ? `${answer.body.detail}: ${answer.body.hint}` : answer.body.detail;
  problem.hidden = false;
  input.setAttribute("aria-invalid", "true");
  input.focus();
});

input.addEventListener("input", () => {
  problem.hidden = true;
  input.removeAttribute("aria-invalid");
});
