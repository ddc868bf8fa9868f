// What every page does: the theme's button, and a voice for screen readers; and what several scripts need.

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

const theme = () => root.dataset.theme ?? (prefersDark.matches ? "dark" : "light");

/** What `keep` kept in this browser; null where nothing is, or where storage is forbidden. */
export function kept(key, storage = "localStorage") {
  try {
    return JSON.parse(globalThis[storage].getItem(key));
  } catch {
    return null;
  }
}

export function keep(key, value, storage = "localStorage") {
  try {
    globalThis[storage].setItem(key, JSON.stringify(value));
  } catch {
    // Not kept, then; it holds as long as the page is open.
  }
}

/** A new element; attributes that are null are left out. */
export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function makeButton(words, act, kind = "button") {
  const button = make("button", { type: "button", class: kind }, words);
  button.addEventListener("click", act);
  return button;
}

/** Another page of the server, and the status of its answer. */
export async function pageAt(href) {
  const answer = await fetch(href, { headers: { accept: "text/html" } });
  return { status: answer.status, page: new DOMParser().parseFromString(await answer.text(), "text/html") };
}

/** Give the reader a file, made of parts. */
export function offerFile(name, type, parts) {
  const link = make("a", { href: URL.createObjectURL(new Blob(parts, { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function hasModifier(event) {
  return event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
}

function setUpThemeButton(button) {
  const label = button.querySelector("[data-theme-label]");
  const describe = () => {
    label.textContent = theme() === "dark" ? "Use the light theme" : "Use the dark theme";
    button.title = label.textContent;
  };
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    keep("geval-theme", root.dataset.theme);
    describe();
  });
  prefersDark.addEventListener("change", describe);
  describe();
  button.hidden = false;
}

/** Say `text` to screen readers, without moving the focus. */
export function announce(text) {
  const announcer = document.querySelector("[data-announcer]");
  if (announcer) announcer.textContent = text;
}

const button = document.querySelector("[data-theme-toggle]");
if (button) setUpThemeButton(button);

// A menu closes when something else is clicked, or with Esc; not behind a dialog, from which the focus comes back to it.
document.addEventListener("click", ({ target }) => {
  if (target.closest("dialog")) return;
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && event.target.closest("details.menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

/** Times in the reader's own zone; without this they stand there in UTC. */
export function localTimes() {
  const format = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "short" }); // 2026-11-23 19:50
  for (const element of document.querySelectorAll("time[data-when]")) {
    const when = new Date(element.dateTime);
    if (!Number.isNaN(when.valueOf())) {
      element.title = element.dateTime;
      element.textContent = format.format(when);
    }
  }
}

localTimes();
