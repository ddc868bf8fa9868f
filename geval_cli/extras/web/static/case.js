// The page of one case: keys for the tests before and after it and for its run, and its output as the model meant it to look.

import { offerOthers, setUpOutputs } from "./output.js";
import { hasModifier, pageAt } from "./page.js";
import { keepPlace, leadBack } from "./place.js";

const back = document.querySelector("[data-back]");
const runPath = back.getAttribute("href");
keepPlace(runPath, { cell: location.pathname });
leadBack(back, runPath);

document.addEventListener("keydown", (event) => {
  if (hasModifier(event) || event.target.closest("input, select, textarea")) return;
  if (event.key === "Escape") back.click();
  document.querySelector(`[data-key="${CSS.escape(event.key)}"]`)?.click();
});
setUpOutputs(async (href) => ({ found: (await pageAt(href)).page }));
offerOthers(document);
