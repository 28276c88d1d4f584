// The heat strip says what a cell is: where the pointer is, or the one that arrow keys have gone to.
function heatStrip(strip) {
  const { steps, ns, causes } = data.heat;
  const rows = all("svg", strip);
  const told = byId("cell");
  const mark = document.createElementNS(SVG, "rect");
  mark.setAttribute("class", "cell");
  mark.setAttribute("width", 1);
  mark.setAttribute("height", 1);
  let [row, step] = [0, -1];

  function tell(toRow, toStep) {
    [row, step] = [clamp(toRow, 0, rows.length - 1), clamp(toStep, 0, steps.length - 1)];
    const [cause, ...times] = causes[row];
    const part = ns[step] ? `, ${((100 * times[step]) / ns[step]).toFixed(1)} % of its ${rounded(ns[step])}` : "";
    told.textContent = `${steps[step]}: ${cause} ${rounded(times[step])}${part}`;
    rows[row].querySelector("title").textContent = told.textContent;
    mark.setAttribute("x", step);
    rows[row].append(mark);
  }

  strip.setAttribute("tabindex", 0);
  strip.setAttribute("role", "application");
  strip.setAttribute("aria-label", "Where each step waited");
  strip.setAttribute("aria-describedby", "cell");
  rows.forEach((svg, i) => {
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      tell(i, Math.floor(((event.clientX - box.left) / box.width) * steps.length));
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
  });
  strip.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    tell(row + by[0], step < 0 ? 0 : step + by[1]);
  });
}
if (byId("heat")) heatStrip(byId("heat"));
