// Drawings: arrow keys move between the marks of one, and a page that holds none yet loads them when they are opened.

/** Make the marks of each drawing one stop of the Tab key. */
export function setUpDrawings(root) {
  for (const drawing of root.querySelectorAll(".chart-drawing")) {
    drawing.querySelectorAll("a").forEach((mark, number) => mark.setAttribute("tabindex", number ? "-1" : "0"));
  }
}

function targetOf(key, marks, place) {
  switch (key) {
    case "ArrowRight": case "ArrowDown": return marks[place + 1];
    case "ArrowLeft": case "ArrowUp": return marks[place - 1];
    case "Home": return marks[0];
    case "End": return marks.at(-1);
    default: return undefined;
  }
}

document.addEventListener("keydown", (event) => {
  const mark = event.target.closest?.(".chart-drawing a");
  if (!mark || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const marks = [...mark.closest(".chart-drawing").querySelectorAll("a")];
  const target = targetOf(event.key, marks, marks.indexOf(mark));
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
    const answer = await fetch(link.href, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.querySelector("[data-charts]");
    if (!answer.ok || !found) throw new Error("no charts");
    link.closest("p").replaceWith(document.adoptNode(found));
    setUpDrawings(section);
    section.dataset.state = "loaded";
  } catch {
    delete section.dataset.state;
  }
}

function keep(isOpen) {
  try {
    localStorage.setItem(KEPT, isOpen ? "open" : "closed");
  } catch {
    // Not kept, then.
  }
}

function wasOpen() {
  try {
    return localStorage.getItem(KEPT) === "open";
  } catch {
    return false;
  }
}

setUpDrawings(document);
const section = document.querySelector("details[data-charts-section]");
if (section) {
  section.addEventListener("toggle", () => {
    keep(section.open);
    if (section.open) load(section);
  });
  if (wasOpen()) section.open = true;
}
