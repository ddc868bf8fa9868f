// Drawings: arrow keys move between the marks of one, and a page that holds none yet loads them when they are opened.

import { keep, kept, hasModifier, pageAt } from "./page.js";

/** Make the marks of each drawing one stop of the Tab key. */
export function setUpDrawings(root) {
  for (const drawing of root.querySelectorAll(".chart-drawing")) {
    drawing.querySelectorAll("a").forEach((mark, number) => mark.setAttribute("tabindex", number ? "-1" : "0"));
  }
}

document.addEventListener("keydown", (event) => {
  const mark = event.target.closest?.(".chart-drawing a");
  if (!mark || hasModifier(event)) return;
  const marks = [...mark.closest(".chart-drawing").querySelectorAll("a")];
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -marks.length, End: marks.length }[event.key];
  const target = steps && marks[Math.min(Math.max(marks.indexOf(mark) + steps, 0), marks.length - 1)];
  if (!target) return;
  event.preventDefault();
  mark.setAttribute("tabindex", "-1");
  target.setAttribute("tabindex", "0");
  target.focus();
});

const KEPT = "geval-charts";

/** Load the drawings of another address into `section`; where that fails, its link still leads there. */
async function load(section) {
  const link = section.querySelector("[data-charts-link]");
  if (!link || section.dataset.state) return;
  section.dataset.state = "loading";
  try {
    const { page } = await pageAt(link.href);
    link.closest("p").replaceWith(document.adoptNode(page.querySelector("[data-charts]")));
    setUpDrawings(section);
    section.dataset.state = "loaded";
  } catch {
    delete section.dataset.state;
  }
}

setUpDrawings(document);
const section = document.querySelector("details[data-charts-section]");
if (section) {
  section.addEventListener("toggle", () => {
    keep(KEPT, section.open);
    if (section.open) load(section);
  });
  if (kept(KEPT)) section.open = true;
}
