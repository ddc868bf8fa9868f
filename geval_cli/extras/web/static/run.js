// A run's page: its results come from the server.

import { setUpMatrix } from "./matrix.js";
import { pageAt } from "./page.js";
import { comesBack, keepPlace, keptPlace } from "./place.js";

const runPath = document.querySelector("[data-filters]").getAttribute("action");

async function page(href) {
  const { status, page: found } = await pageAt(href);
  if (status >= 500) throw new Error(`the server answered ${status}`);
  return found;
}

const withQuery = (path, query) => (query.size ? `${path}?${query}` : path);

setUpMatrix({
  isListed: true,
  address: (query) => withQuery(runPath, query),
  query: (href) => new URL(href).searchParams,
  caseIn(href) {
    const { pathname } = new URL(href);
    return pathname.startsWith(`${runPath}/results/`) ? pathname : null;
  },
  async list(query) {
    const found = (await page(withQuery(`${runPath}/results`, query))).querySelector("[data-results]");
    if (!found) throw new Error("the server does not have these results");
    return found;
  },
  async load(href) {
    const found = await page(href);
    return { found: found.querySelector("#case") ?? found.querySelector("#content > *"), title: found.title };
  },
  keep: (cell, list) => keepPlace(runPath, { cell, list }),
  kept: () => ({ cell: keptPlace(runPath).cell, isReturning: comesBack(runPath) }),
});
