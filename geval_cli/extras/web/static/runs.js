// The list of runs: two at most are ticked for comparison, and runs under way keep their rows up to date.

import { announce, pageAt } from "./page.js";
import { comesBack, keepPlace, keptPlace } from "./place.js";

const POLL_MS = 2000;
const form = document.querySelector("[data-runs-form]");

function setUpCompare() {
  const boxes = [...form.querySelectorAll("input[name='run']")];
  const button = form.querySelector("[data-compare]");
  let order = boxes.filter((box) => box.checked);
  const show = () => {
    button.disabled = order.length !== 2;
    button.classList.toggle("is-primary", order.length === 2);
  };
  form.addEventListener("change", (event) => {
    if (!boxes.includes(event.target)) return;
    order = order.filter((box) => box !== event.target);
    if (event.target.checked) order.push(event.target);
    while (order.length > 2) order.shift().checked = false;
    show();
    announce(order.length === 2 ? "Two runs chosen" : `${order.length} of two runs chosen`);
  });
  addEventListener("pageshow", () => {
    order = boxes.filter((box) => box.checked);
    show();
  });
  show();
}

/** Put the rows of the page as it is now in the place of those under way. */
async function refresh() {
  const rows = [...document.querySelectorAll("tr[data-live]")];
  if (!rows.length) return;
  try {
    const { page } = await pageAt(location.href);
    for (const row of rows) update(row, page.getElementById(row.id));
  } catch {
    // The server may be away for a moment; the next time will tell.
  }
  setTimeout(refresh, POLL_MS);
}

function update(row, now) {
  if (!now) return;
  for (const cell of now.querySelectorAll("[data-cell]")) {
    row.querySelector(`[data-cell="${cell.dataset.cell}"]`)?.replaceChildren(...cell.childNodes);
  }
  if (!now.dataset.live) {
    delete row.dataset.live;
    announce(`Run ${row.id.slice("run-".length)} has ended.`);
  }
}

/** Bring who comes back to the run that they left for. */
function setUpPlace() {
  form.addEventListener("click", (event) => {
    const row = event.target.closest("a.main-link") && event.target.closest("tr");
    if (row) keepPlace("/", { row: row.id });
  });
  const { row } = keptPlace("/");
  if (row && comesBack("/")) document.getElementById(row)?.querySelector("a.main-link").focus({ preventScroll: true });
}

if (form) {
  setUpCompare();
  setUpPlace();
  setTimeout(refresh, POLL_MS);
}
