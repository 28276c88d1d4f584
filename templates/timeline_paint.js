// Painting: every lane is filled exactly as far as it is covered, at every zoom.
const pen = canvas?.getContext("2d", { alpha: false });
const ink = {};
const FADED = 0.22; // how strong boxes are that a search did not find

function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "panel", "ink", "soft", "line", "mark", "path"])
    ink[name] = style.getPropertyValue(`--${name}`).trim();
  ink.slots = data.slots.map((slot) => style.getPropertyValue(`--c-${slot}`).trim());
  ink.faded = ink.slots.map((colour) => mixed(colour, ink.panel, FADED));
  ink.edges = ink.slots.map((colour) => mixed(ink.ink, colour, 0.3));
  ink.texts = ink.slots.map(readableOn);
  redraw();
}

const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
const mixed = (a, b, part) => {
  const [first, second] = [channels(a), channels(b)];
  return (
    "#" +
    first
      .map((c, i) =>
        Math.round(c * part + second[i] * (1 - part))
          .toString(16)
          .padStart(2, "0"),
      )
      .join("")
  );
};
function luminance(colour) {
  const [r, g, b] = channels(colour)
    .map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
/** Black or white: one of them has a contrast of at least 4.5 on any colour. */
function readableOn(colour) {
  const light = luminance(colour);
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

function fit(text, room) {
  if (pen.measureText(text).width <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}

function draw() {
  const ratio = window.devicePixelRatio || 1;
  const lanes = shownLanes();
  view.width = canvas.clientWidth;
  view.gutter = labelWidth(lanes);
  const [wide, high] = [Math.round(view.width * ratio), Math.round(lanes.height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = `${lanes.height}px`;
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = ink.paper;
  pen.fillRect(0, 0, view.width, lanes.height);
  pen.textBaseline = "middle";
  pen.save();
  pen.beginPath();
  pen.rect(view.gutter, 0, view.width - view.gutter, lanes.height);
  pen.clip();
  drawRuler(lanes.height);
  for (const shown of lanes) drawLane(shown, ratio);
  if (byId("critical")?.checked) drawPath(lanes);
  drawMarks(lanes.height);
  if (view.selected) drawSelected(lanes);
  pen.restore();
  drawLabels(lanes);
  placeOverview();
  canvas.dataset.from = view.from;
  canvas.dataset.to = view.to;
  canvas.dataset.gutter = view.gutter;
  canvas.dataset.lanes = JSON.stringify(lanes.map(({ index, y, height }) => [index, y, height]));
}

function drawRuler(height) {
  const { device } = view;
  const span = view.to - view.from;
  const rough = span / Math.max((view.width - view.gutter) / 120, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "left";
  const first = Math.ceil((view.from + device.origin) / step) * step - device.origin;
  for (let tick = first; tick < view.to; tick += step) {
    pen.fillStyle = ink.line;
    pen.fillRect(Math.round(x(tick)), 0, 1, height);
    pen.fillStyle = ink.soft;
    pen.fillText(fit(at(tick, step), view.width - x(tick) - 6), x(tick) + 4, 9);
  }
  pen.fillStyle = ink.soft;
  for (const [a, b] of device.whole || []) pen.fillRect(x(a), RULER - 3, Math.max(x(b) - x(a), 1), 3);
  device.steps.forEach(([name, begin, end, out], i) => {
    pen.fillStyle = out ? ink.soft : ink.ink;
    pen.fillRect(Math.round(x(begin)), 16, 1, height);
    const left = Math.max(x(begin), view.gutter);
    const next = i + 1 < device.steps.length ? device.steps[i + 1][1] : end;
    if (x(next) - left > 30) pen.fillText(fit(name, x(next) - left - 8), left + 4, 23);
  });
}

/** How far each pixel of a lane is covered, by colour. */
function coverage(lane, columns, scale) {
  const covered = new Map();
  const labels = [];
  const { matches, device } = view;
  for (const i of boxesIn(lane, view.from, view.to)) {
    const a = clamp((lane.start[i] - view.from) * scale, 0, columns);
    const b = clamp((lane.end[i] - view.from) * scale, 0, columns);
    const faded = matches && !matches[lane.n[i]] ? data.slots.length : 0;
    const colour = device.details[lane.n[i]][details.slot] + faded;
    if (!covered.has(colour)) covered.set(colour, new Float32Array(columns + 1));
    const part = covered.get(colour);
    const density = lane.density[i];
    const [left, right] = [Math.floor(a), Math.floor(b)];
    if (left === right) part[left] += (b - a) * density;
    else {
      part[left] += (left + 1 - a) * density;
      for (let column = left + 1; column < right; column++) part[column] += density;
      part[right] += (b - right) * density;
    }
    if (density === 1 && lane.count[i] === 1 && b - a > 6) labels.push(i);
  }
  return [[...covered].sort(([one], [other]) => one - other), labels];
}

function drawLane({ lane, y, height }, ratio) {
  const columns = Math.max(Math.round((view.width - view.gutter) * ratio), 1);
  const scale = columns / (view.to - view.from);
  const [covered, labels] = coverage(lane, columns, scale);
  const [left, top] = [Math.round(view.gutter * ratio), Math.round(y * ratio)];
  const tall = Math.round(height * ratio);
  const below = new Uint16Array(columns);
  pen.fillStyle = ink.panel;
  pen.fillRect(view.gutter, y, view.width - view.gutter, height);
  pen.setTransform(1, 0, 0, 1, 0, 0);
  for (const [colour, part] of covered) {
    const faded = colour >= data.slots.length;
    pen.fillStyle = faded ? ink.faded[colour - data.slots.length] : ink.slots[colour];
    const filled = wholePixels(part, columns, tall);
    let from = 0;
    for (let column = 1; column <= columns; column++) {
      if (column < columns && filled[column] === filled[from] && below[column] === below[from]) continue;
      const high = Math.min(filled[from], tall - below[from]);
      if (high > 0) pen.fillRect(left + from, top + tall - below[from] - high, column - from, high);
      from = column;
    }
    for (let column = 0; column < columns; column++) below[column] = Math.min(below[column] + filled[column], tall);
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (lane.kind !== "idle") drawNames(lane, labels, y, height);
}

/** Coverage as whole pixels from below; what rounding leaves is carried on, so that sums stay true. */
function wholePixels(part, columns, tall) {
  const filled = new Uint16Array(columns);
  let carried = 0;
  for (let column = 0; column < columns; column++) {
    if (!part[column]) continue;
    const exact = Math.min(part[column], 1) * tall + carried;
    filled[column] = clamp(Math.round(exact), 0, tall);
    carried = exact - filled[column];
  }
  return filled;
}

/** Where a box begins, and what it is. */
function drawNames(lane, labels, y, height) {
  const { device, matches } = view;
  pen.font = "11px ui-monospace, monospace";
  pen.textAlign = "left";
  for (const i of labels) {
    const detail = device.details[lane.n[i]];
    const [a, b] = [Math.max(x(lane.start[i]), view.gutter), Math.min(x(lane.end[i]), view.width)];
    const slot = detail[details.slot];
    if (matches && !matches[lane.n[i]]) continue;
    if (lane.start[i] >= view.from) {
      pen.fillStyle = ink.edges[slot];
      pen.fillRect(Math.round(a), y, 1, height);
    }
    if (b - a < 34) continue;
    pen.fillStyle = ink.texts[slot];
    pen.fillText(fit(device.texts[detail[details.name]], b - a - 8), a + 4, y + height / 2);
  }
}

function drawPath(lanes) {
  const place = new Map(lanes.map((shown) => [shown.index, shown]));
  let before = null;
  pen.fillStyle = ink.path;
  for (const [index, begin, end] of view.device.path) {
    const shown = place.get(index);
    if (!shown) continue;
    const y = shown.y + shown.height - 2;
    if (end > view.from && begin < view.to) {
      pen.fillRect(x(begin), y - 2, Math.max(x(end) - x(begin), 1), 4);
      if (before !== null) pen.fillRect(x(begin) - 0.75, Math.min(before, y), 1.5, Math.abs(y - before));
    }
    before = y;
  }
}

function drawMarks(height) {
  view.marks.forEach((ns, i) => {
    pen.fillStyle = ink.mark;
    pen.globalAlpha = i === view.place ? 1 : 0.5;
    pen.fillRect(Math.round(x(ns)) - 1, RULER - 6, 2, i === view.place ? height : 10);
    pen.beginPath();
    pen.moveTo(x(ns) - 6, RULER - 8);
    pen.lineTo(x(ns) + 6, RULER - 8);
    pen.lineTo(x(ns), RULER);
    pen.fill();
  });
  pen.globalAlpha = 1;
}

function drawSelected(lanes) {
  const place = new Map(lanes.map((shown) => [shown.index, shown]));
  const [index, i] = view.selected;
  const here = place.get(index);
  if (!here) return;
  const { lane } = here;
  pen.strokeStyle = ink.ink;
  pen.lineWidth = 2;
  pen.strokeRect(x(lane.start[i]), here.y, Math.max(x(lane.end[i]) - x(lane.start[i]), 2), here.height);
  const threads = lanes.filter((shown) => shown.lane.kind === "host" && shown.lane.depth === 0);
  if (lane.l && lane.l[i] >= 0) {
    const thread = threads[threadOf(lane, i)];
    if (thread) arrow(thread, lane.start[i] - lane.l[i], here, lane.start[i]);
  }
  if (lane.kind !== "host") return;
  const number = threads.findIndex((shown) => shown.lane.label === lane.label);
  let drawn = 0;
  for (const other of lanes) {
    if (!other.lane.l) continue;
    for (let k = 0; k < other.lane.l.length && drawn < 60; k++) {
      const call = other.lane.start[k] - other.lane.l[k];
      const mine = other.lane.l[k] >= 0 && call >= lane.start[i] && call < lane.end[i];
      if (mine && threadOf(other.lane, k) === number && ++drawn) arrow(here, call, other, other.lane.start[k]);
    }
  }
}

function arrow(thread, call, operation, start) {
  const [a, b] = [x(call), x(start)];
  const [y0, y1] = [thread.y, operation.y + operation.height];
  pen.strokeStyle = pen.fillStyle = ink.mark;
  pen.lineWidth = 1.5;
  pen.fillRect(a - 2, y0 - 2, 4, 4);
  pen.beginPath();
  pen.moveTo(a, y0);
  pen.bezierCurveTo(a, (y0 + y1) / 2, b, (y0 + y1) / 2, b, y1 + 4);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(b - 4, y1 + 6);
  pen.lineTo(b + 4, y1 + 6);
  pen.lineTo(b, y1);
  pen.fill();
}
