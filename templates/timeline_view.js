// What of the timeline is seen: device, stretch of time, lanes, and where they lie on the canvas.
const canvas = byId("lanes");
const RULER = 34;
const GAP = 4;
const HEIGHTS = { idle: 28, stream: 28, host: 18 };
const SHORTEST = 50; // ns: zoomed in no further
const SHALLOW = 4; // depths of a host thread that are shown unless all are asked for

const view = {
  device: data.devices[0],
  number: 0,
  from: 0,
  to: 1,
  width: 0,
  gutter: 128,
  selected: null,
  marks: [],
  spread: 0,
  place: 0,
  matches: null,
  finding: null,
  recalled: null,
};

/** The lanes that are shown, with their places: [lane, index in the device, top, height]. */
function shownLanes() {
  const deep = byId("deep")?.checked;
  const shown = [];
  let y = RULER + GAP;
  view.device.lanes.forEach((lane, index) => {
    if (lane.kind === "host" && lane.depth >= SHALLOW && !deep) return;
    const height = HEIGHTS[lane.kind];
    if (lane.kind !== "host" || lane.depth === 0) y += GAP;
    shown.push({ lane, index, y, height });
    y += height + (lane.kind === "host" ? 1 : 0);
  });
  shown.height = y + GAP;
  return shown;
}

const x = (ns) => view.gutter + ((ns - view.from) / (view.to - view.from)) * (view.width - view.gutter);
const instant = (px) => view.from + ((px - view.gutter) / (view.width - view.gutter)) * (view.to - view.from);

/** An instant as all texts have it: milliseconds from the recording's first event. */
function at(ns, step) {
  const digits = step ? clamp(Math.ceil(6 - Math.log10(step) - 1e-9), 0, 6) : 3;
  const number = ((ns + view.device.origin) / 1e6).toLocaleString("en", {
    minimumFractionDigits: digits,
    maximumFractionDigits: step ? digits : 6,
  });
  return `${number} ms`;
}

let waiting = 0;
function redraw() {
  if (!waiting && canvas)
    waiting = requestAnimationFrame(() => {
      waiting = 0;
      draw();
      remember();
    });
}

function look(begin, end) {
  const { device } = view;
  const whole = device.end - device.start;
  const length = clamp(end - begin, Math.min(SHORTEST, whole), whole);
  view.from = clamp((begin + end) / 2 - length / 2, device.start, device.end - length);
  view.to = view.from + length;
  redraw();
}
const zoom = (factor, around = (view.from + view.to) / 2) =>
  look(around - (around - view.from) * factor, around + (view.to - around) * factor);
function pan(part) {
  const by = part * (view.to - view.from);
  look(view.from + by, view.to + by);
}
const whole = () => look(view.device.start, view.device.end);

function turn(number) {
  view.number = number;
  view.device = data.devices[number];
  view.selected = null;
  view.marks = [];
  byId("places").hidden = true;
  if (byId("device")) byId("device").value = number;
  tellSelection();
  whole();
}
