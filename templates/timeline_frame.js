// What stands around the lanes: their labels, and the overview above them.
const LABEL = "12px system-ui, sans-serif";

/** How wide the labels are, within what a screen can spare. */
function labelWidth(lanes) {
  if (view.width < 600) return 66;
  pen.font = LABEL;
  const widest = Math.max(...lanes.map(({ lane }) => pen.measureText(lane.label).width));
  return Math.round(clamp(widest + 18, 110, Math.min(240, view.width / 5)));
}

function drawLabels(lanes) {
  pen.font = LABEL;
  pen.fillStyle = ink.soft;
  pen.textAlign = "left";
  const short = (label) =>
    view.width < 600 ? label.replace(/^(stream|thread) (thread )?/, (word) => `${word[0]} `) : label;
  for (const { lane, y, height } of lanes)
    if (!lane.depth) pen.fillText(fit(short(lane.label), view.gutter - 10), 6, y + height / 2);
}

/** The overview lies above the lanes, on their axis, and shows what part of it they show. */
function placeOverview() {
  const overview = byId("overview");
  if (!overview) return;
  overview.style.marginLeft = `${view.gutter}px`;
  overview.style.width = `${view.width - view.gutter}px`;
  const { device } = view;
  const wide = overview.viewBox.baseVal.width;
  const part = (ns) => clamp(((ns - device.start) / (device.end - device.start)) * wide, 0, wide);
  const port = byId("viewport");
  const [a, b] = [part(view.from), part(view.to)];
  port.setAttribute("x", a);
  port.setAttribute("width", Math.max(b - a, wide / 600));
  port.toggleAttribute("hidden", b - a > wide * 0.9996 || view.number !== 0);
}
