// The timeline begins once everything above is there.
if (canvas) {
  listenToControls();
  listenToWheel();
  listenToPointers();
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readInk);
  addEventListener("beforeprint", () => {
    readInk();
    draw();
  });
  whole();
  readInk();
}
recall();
addEventListener("hashchange", recall);
