// What every page does: the theme's button, and a voice for screen readers.

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return root.dataset.theme ?? (prefersDark.matches ? "dark" : "light");
}

function keepTheme(name) {
  try {
    localStorage.setItem("geval-theme", name);
  } catch {
    // Not kept, then; it still holds for this page.
  }
}

function setUpThemeButton(button) {
  const label = button.querySelector("[data-theme-label]");
  const describe = () => {
    label.textContent = theme() === "dark" ? "Use the light theme" : "Use the dark theme";
    button.title = label.textContent;
  };
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    keepTheme(root.dataset.theme);
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
