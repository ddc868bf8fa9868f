// Runs before the page is drawn, so that a chosen theme does not flash. A classic script: modules come too late.
try {
  const chosen = JSON.parse(localStorage.getItem("geval-theme"));
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; then the system's theme is used.
}
document.documentElement.classList.add("has-scripts");
