// Flame graphs: a click or Enter makes a box as wide as the graph, again or Esc goes back; arrows go from box to box.
const NAMED = 40; // pixels of a box that gets its name

function flameGraph(graph) {
  const boxes = all("svg", graph);
  const told = byId(`${graph.id}-box`);
  const places = new Map(boxes.map((box) => [box, ["x", "width"].map((name) => parseFloat(box.getAttribute(name)))]));
  const start = (box) => places.get(box)[0];
  const end = (box) => start(box) + places.get(box)[1];
  const row = (box) => Number(box.getAttribute("y"));
  const tip = (box) => box.querySelector("title").textContent;
  let [from, width] = [0, 100];
  let current = null;

  function look(x, wide) {
    [from, width] = [x, wide];
    const pixels = graph.clientWidth / wide;
    for (const box of boxes) {
      box.setAttribute("x", `${((start(box) - from) / width) * 100}%`);
      box.setAttribute("width", `${((end(box) - start(box)) / width) * 100}%`);
      box.toggleAttribute("hidden", end(box) <= from || start(box) >= from + width);
      if (!box.querySelector("text") && (end(box) - start(box)) * pixels > NAMED) name(box);
    }
  }

  function name(box) {
    const text = document.createElementNS(SVG, "text");
    text.setAttribute("x", 4);
    text.setAttribute("y", 13.5);
    text.textContent = tip(box).replace(/: [^:]*$/, "");
    box.append(text);
  }

  function tell(box) {
    current?.classList.remove("current");
    current = box;
    current?.classList.add("current");
    told.textContent = box ? tip(box) : "";
  }

  function enter(box) {
    if (start(box) === from && end(box) - start(box) === width) look(0, 100);
    else look(start(box), end(box) - start(box));
    tell(box);
  }

  /** The nearest box to the left or right, above or below. */
  function next(key) {
    if (!current) return boxes[0];
    const beside = boxes.filter((box) => !box.hasAttribute("hidden") && box !== current);
    const middle = (start(current) + end(current)) / 2;
    const there = {
      ArrowLeft: (box) => row(box) === row(current) && end(box) <= middle,
      ArrowRight: (box) => row(box) === row(current) && start(box) >= middle,
      ArrowUp: (box) => row(box) < row(current) && start(box) <= start(current) && end(box) >= end(current) - 1e-6,
      ArrowDown: (box) => row(box) > row(current) && start(box) >= start(current) && end(box) <= end(current) + 1e-6,
    }[key];
    const away = (box) => Math.abs(row(box) - row(current)) * 1000 + Math.abs(start(box) - start(current));
    return beside.filter(there).sort((a, b) => away(a) - away(b))[0] || current;
  }

  graph.setAttribute("tabindex", 0);
  graph.setAttribute("role", "application");
  graph.addEventListener("click", (event) => {
    const box = event.target.closest(".flame > svg");
    if (box) enter(box);
  });
  graph.addEventListener("pointermove", (event) => {
    const box = event.target.closest(".flame > svg");
    if (box && box !== current) tell(box);
  });
  graph.addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) tell(next(event.key));
    else if (event.key === "Enter" && current) enter(current);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") look(0, 100);
  });
  look(0, 100);
}
all("svg.flame").forEach(flameGraph);
