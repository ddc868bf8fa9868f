// An output as it came, as its Markdown means it, or beside that of another column; a button or a choice shows the other one.

const PAIRS_MAX = 4_000_000;

const wordsOf = (text) => [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)].map(({ segment }) => segment);

/** The longest common words of two lists, as pairs of places; none where that would take too long. */
function commonWords(old, fresh) {
  if (old.length * fresh.length > PAIRS_MAX) return [];
  const width = fresh.length + 1;
  const lengths = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = fresh.length - 1; j >= 0; j -= 1) {
      const [below, beside] = [lengths[(i + 1) * width + j], lengths[i * width + j + 1]];
      lengths[i * width + j] = old[i] === fresh[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(below, beside);
    }
  }
  const pairs = [];
  for (let i = 0, j = 0; i < old.length && j < fresh.length;) {
    if (old[i] === fresh[j]) pairs.push([i++, j++]);
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}

/** How `before` becomes `after`, word by word, as nodes. */
function difference(before, after) {
  const [old, fresh] = [wordsOf(before), wordsOf(after)];
  const made = new DocumentFragment();
  let [i, j] = [0, 0];
  const add = (name, words) => {
    if (!words.length) return;
    const part = name ? document.createElement(name) : made;
    part.append(words.join(""));
    if (name) made.append(part);
  };
  for (const [one, other] of [...commonWords(old, fresh), [old.length, fresh.length]]) {
    add("del", old.slice(i, one));
    add("ins", fresh.slice(j, other));
    add("", fresh.slice(other, other + 1));
    [i, j] = [one + 1, other + 1];
  }
  return made;
}

function show(block, part) {
  for (const name of ["text", "rendered", "difference"]) {
    const found = block.querySelector(`[data-output-${name}]`);
    if (found) found.hidden = name !== part;
  }
  const chat = block.querySelector(".chat");
  if (chat) chat.hidden = part === "difference";
  if (chat && part === "text") block.querySelector("[data-output-text]").hidden = true;
  block.querySelector("[data-output-switch]")?.setAttribute("aria-pressed", String(part === "rendered"));
  const choice = block.querySelector("[data-difference]");
  if (choice && part !== "difference") choice.value = "";
}

/** Let the reader choose another column to compare the output of `root`'s case with. */
export function offerOthers(root) {
  const choice = root.querySelector("[data-difference]");
  const others = [...root.querySelectorAll("[data-columns-of-test] [data-sibling]:not([aria-current])")];
  if (!choice || !others.length) return;
  choice.replaceChildren(new Option("Compare with …", ""), ...others.map((link) => new Option(link.lastElementChild.textContent, link.getAttribute("href"))));
  choice.closest("label").hidden = false;
}

/** Let outputs be shown in other ways; `load(href)` is a promise of { found }, the element of another case. */
export function setUpOutputs(load) {
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-output-switch]");
    if (button) show(button.closest("[data-output]"), button.getAttribute("aria-pressed") === "true" ? "text" : "rendered");
  });
  document.addEventListener("change", async ({ target }) => {
    if (!target.matches("[data-difference]")) return;
    const block = target.closest("[data-output]");
    if (!target.value) {
      show(block, "text");
      return;
    }
    const other = (await load(target.value)).found.querySelector("[data-output-text]")?.textContent ?? "";
    const own = block.querySelector("[data-output-text]").textContent;
    block.querySelector("[data-output-difference]").replaceChildren(other === own ? "Both outputs are equal." : difference(other, own));
    show(block, "difference");
  });
}
