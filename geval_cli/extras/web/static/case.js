// The page of one case: keys for the tests before and after it and for its run, and its output as the model meant it to look.

import { offerOthers, setUpOutputs } from "./output.js";
import { keepPlace, leadBack } from "./place.js";

const back = document.querySelector("[data-back]");
const runPath = back.getAttribute("href");
keepPlace(runPath, { cell: location.pathname });
leadBack(back, runPath);

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "Escape") back.click();
  document.querySelector(`[data-key="${CSS.escape(event.key)}"]`)?.click();
});
setUpOutputs(async (href) => ({ found: new DOMParser().parseFromString(await (await fetch(href, { headers: { accept: "text/html" } })).text(), "text/html") }));
offerOthers(document);
