// Where somebody was in a list, for when they come back to it in the same tab.

import { keep, kept } from "./page.js";

const keyOf = (path) => `geval-place:${path}`;

/** Keep parts of the place in the list at `path`; those that are not given stay. */
export function keepPlace(path, place) {
  keep(keyOf(path), { ...keptPlace(path), ...place }, "sessionStorage");
}

export function keptPlace(path) {
  return kept(keyOf(path), "sessionStorage") ?? {};
}

/** Let a link to the list at `path` lead to it as it was left, with its filters, and to the place in it. */
export function leadBack(link, path) {
  const { list } = keptPlace(path);
  if (list?.split("?")[0] === path) link.href = list;
  link.addEventListener("click", () => keepPlace(path, { isLedBack: true }));
}

/** Whether the reader comes back to the list at `path`: then the focus belongs where it was. */
export function comesBack(path) {
  const { isLedBack } = keptPlace(path);
  if (isLedBack) keepPlace(path, { isLedBack: false });
  return Boolean(isLedBack) || performance.getEntriesByType("navigation")[0]?.type === "back_forward";
}
