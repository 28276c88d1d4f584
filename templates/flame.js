// Flame graphs: a click makes a box as wide as the graph, Esc or a click on the outermost row goes back.
function flameGraph(graph) {
  const boxes = all("svg", graph);
  const look = (from, width) => {
    for (const box of boxes) {
      const x = ((Number(box.dataset.x) - from) / width) * 100;
      const wide = (Number(box.dataset.w) / width) * 100;
      box.setAttribute("x", `${x}%`);
      box.setAttribute("width", `${Math.max(wide, 0)}%`);
      box.toggleAttribute("hidden", x + wide <= 0 || x >= 100);
    }
    graph.dataset.from = from;
    graph.dataset.width = width;
  };
  graph.addEventListener("click", (event) => {
    const box = event.target.closest("svg[data-x]");
    if (!box) return;
    const [from, width] = [Number(box.dataset.x), Number(box.dataset.w)];
    if (Number(graph.dataset.from) === from && Number(graph.dataset.width) === width) look(0, 100);
    else look(from, width);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") look(0, 100);
  });
}
all("svg.flame").forEach(flameGraph);
