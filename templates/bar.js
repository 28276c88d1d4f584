// The bar of causes: one stop of the tab key, arrows inside; each part lights up its row of the table.
const parts = all(".bar g");
parts.forEach((part, i) => {
  const light = (on) => byId(part.dataset.cause)?.classList.toggle("lit", on);
  part.addEventListener("mouseenter", () => light(true));
  part.addEventListener("mouseleave", () => light(false));
  part.addEventListener("focus", () => light(true));
  part.addEventListener("blur", () => light(false));
  part.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = parts[clamp(i + by, 0, parts.length - 1)];
    part.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
});
