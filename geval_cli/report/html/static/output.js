// An output as it came, or as its Markdown means it; both stand in the page, and a button shows the other one.

export function setUpOutputs() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-output-switch]");
    if (!button) return;
    const block = button.closest("[data-output]");
    const isRendered = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isRendered));
    block.querySelector("[data-output-text]").hidden = isRendered;
    block.querySelector("[data-output-rendered]").hidden = !isRendered;
  });
}
