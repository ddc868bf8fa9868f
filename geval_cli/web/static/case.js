// The page of one case: keys for the tests before and after it, and its output as the model meant it to look.

import { setUpOutputs } from "./output.js";

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.closest("input, select, textarea")) return;
  document.querySelector(`[data-key="${CSS.escape(event.key)}"]`)?.click();
});
setUpOutputs();
