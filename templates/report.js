"use strict";
(() => {
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  const byId = (id) => document.getElementById(id);
  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
  for (const element of all("[data-js]")) element.hidden = false;

  // Tables: a click on a head sorts, numbers from the largest; a filter hides the rows that lack its words.
  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    all("th button", table).forEach((button, column) => {
      const head = button.closest("th"), numeric = head.classList.contains("num");
      const key = (row) => numeric ? Number(row.cells[column].dataset.v) : row.cells[column].textContent.toLowerCase();
      button.disabled = false;
      button.addEventListener("click", () => {
        const first = numeric ? "descending" : "ascending", other = numeric ? "ascending" : "descending";
        const order = head.getAttribute("aria-sort") === first ? other : first, sign = order === "ascending" ? 1 : -1;
        all("th", table).forEach((each) => each.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", order);
        body.append(...[...body.rows].sort((a, b) => sign * (numeric ? key(a) - key(b) : key(a).localeCompare(key(b)))));
      });
    });
  }
  for (const input of all("[data-filter]")) {
    const rows = [...byId(input.dataset.filter).tBodies[0].rows];
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      const left = rows.filter((row) => !row.hidden).length;
      input.closest("p").querySelector("[role=status]").textContent = input.value ? `${left} of ${rows.length}` : "";
    });
  }
  for (const part of all(".bar g"))
    for (const [event, on] of [["mouseenter", true], ["focus", true], ["mouseleave", false], ["blur", false]])
      part.addEventListener(event, () => byId(part.dataset.cause)?.classList.toggle("lit", on));
  if (!byId("data")) return;

  // The timeline: columns back to arrays.
  const { colours, devices } = JSON.parse(byId("data").textContent);
  for (const lane of devices.flatMap((device) => device.lanes)) {
    let at = 0;
    lane.start = Float64Array.from(lane.t, (step) => (at += step));
    lane.end = Float64Array.from(lane.d, (length, i) => lane.start[i] + length);
    lane.longest = lane.d.reduce((a, b) => Math.max(a, b), 0);
    lane.sums = new Map((lane.sum || []).map(([i, count, busy]) => [i, { count, busy }]));
    lane.height = lane.kind === "host" ? 20 : 26;
  }
  const canvas = byId("lanes"), pen = canvas.getContext("2d"), readout = byId("box");
  const RULER = 34, GAP = 4, SHORTEST = 50;
  let device = devices[0], from = 0, to = 1, width = 0, gutter = 110, selected = null, hovered = null;
  let marks = [], spread = 0, place = 0, ink = {}, waiting = 0;

  const time = (ns, step = Math.abs(ns) / 1000) => {
    const size = Math.abs(ns), [unit, one] = size < 1e3 ? ["ns", 1] : size < 1e6 ? ["µs", 1e3] : size < 1e10 ? ["ms", 1e6] : ["s", 1e9];
    const digits = one === 1 ? 0 : clamp(Math.ceil(Math.log10(one / step) - 1e-9), 0, 6);
    return `${((ns || 0) / one).toLocaleString("en", { maximumFractionDigits: digits })} ${unit}`;
  };
  const x = (ns) => gutter + ((ns - from) / (to - from)) * (width - gutter);
  const instant = (px) => from + ((px - gutter) / (width - gutter)) * (to - from);
  const first = (lane, ns) => {
    let low = 0, high = lane.start.length;
    while (low < high) { const middle = (low + high) >> 1; if (lane.start[middle] < ns) low = middle + 1; else high = middle; }
    return low;
  };
  const top = (index) => device.lanes.slice(0, index).reduce((y, lane) => y + lane.height + GAP, RULER + GAP);
  const redraw = () => { if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); }); };

  function readInk() {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...colours, "panel", "ink", "soft", "line", "mark", "path", "on"]) ink[name] = style.getPropertyValue("--" + name);
    redraw();
  }
  function look(begin, end) {
    const whole = device.end - device.start, middle = (begin + end) / 2, length = clamp(end - begin, Math.min(SHORTEST, whole), whole);
    from = clamp(middle - length / 2, device.start, device.end - length); to = from + length;
    redraw();
  }
  const zoom = (factor, at = (from + to) / 2) => look(at - (at - from) * factor, at + (to - at) * factor);
  const pan = (part) => look(from + part * (to - from), to + part * (to - from));
  const whole = () => look(device.start, device.end);

  function draw() {
    width = canvas.clientWidth; gutter = width < 600 ? 66 : 128;
    const height = top(device.lanes.length) + 2, ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, width, height); pen.textBaseline = "middle";
    pen.save(); pen.beginPath(); pen.rect(gutter, 0, width - gutter, height); pen.clip();
    drawRuler(height); device.lanes.forEach(drawLane);
    if (byId("critical").checked) drawPath();
    drawMarks(height); if (selected) drawSelected();
    pen.restore();
    pen.font = "12px system-ui, sans-serif"; pen.fillStyle = ink.soft; pen.textAlign = "left";
    const short = (label) => (width < 600 ? label.replace(/^(stream|thread) (thread )?/, (word) => word[0] + " ") : label);
    device.lanes.forEach((lane, i) => pen.fillText(fit(short(lane.label), gutter - 10), 6, top(i) + lane.height / 2));
    const port = byId("viewport"), a = clamp((from / device.wall) * 240, 0, 240), b = clamp((to / device.wall) * 240, 0, 240);
    port.setAttribute("x", a); port.setAttribute("width", Math.max(b - a, 0.4));
    port.toggleAttribute("hidden", b - a > 239.9 || device !== devices[0]);
    Object.assign(canvas.dataset, { from, to }); // what is seen, for whoever asks the page
  }
  const fit = (text, room) => {
    while (text && pen.measureText(text).width > room) text = text.length > 3 ? text.slice(0, text.length > 12 ? -4 : -2) + "…" : "";
    return text;
  };
  function drawRuler(height) {
    const rough = (to - from) / Math.max((width - gutter) / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    pen.font = "11px system-ui, sans-serif"; pen.textAlign = "left";
    for (let at = Math.ceil(from / step) * step; at < to; at += step) {
      pen.fillStyle = ink.line; pen.fillRect(Math.round(x(at)), 0, 1, height);
      pen.fillStyle = ink.soft; pen.fillText(time(at, step), x(at) + 4, 9);
    }
    pen.fillStyle = ink.copies;
    for (const [a, b] of device.whole || []) pen.fillRect(x(a), RULER - 4, Math.max(x(b) - x(a), 2), 3);
    device.steps.forEach(([name, begin, end, out], i) => {
      pen.fillStyle = ink.ink; pen.globalAlpha = out ? 0.3 : 0.75; pen.fillRect(Math.round(x(begin)), 16, 1.5, height);
      const left = Math.max(x(begin), gutter), room = x(i + 1 < device.steps.length ? device.steps[i + 1][1] : end) - left;
      if (room > 30) pen.fillText(fit(name, room - 8), left + 4, 23);
      pen.globalAlpha = 1;
    });
  }
  function drawLane(lane, index) {
    const y = top(index), h = lane.height;
    pen.fillStyle = ink.panel; pen.fillRect(gutter, y, width - gutter, h);
    pen.font = "11px ui-monospace, monospace"; pen.textAlign = "left";
    let lastPixel = -1, lastColour = "", i = Math.max(first(lane, from - lane.longest), 0);
    for (; i < lane.start.length && lane.start[i] < to; i++) {
      if (lane.end[i] < from) continue;
      const a = Math.max(x(lane.start[i]), gutter - 1), b = Math.min(x(lane.end[i]), width + 1), colour = lane.c[i];
      if (b - a < 1 && Math.floor(a) === lastPixel && colour === lastColour) continue;
      if (b - a < 1) { lastPixel = Math.floor(a); lastColour = colour; }
      const sum = lane.sums.get(i);
      pen.fillStyle = ink[colours[colour.charCodeAt(0) - 97]];
      pen.globalAlpha = sum ? 0.3 + 0.7 * Math.min(sum.busy / (lane.d[i] || 1), 1) : 1;
      pen.fillRect(b - a < 1 ? Math.floor(a) : a, y, Math.max(b - a - (b - a > 3 ? 0.6 : 0), 1), h);
      pen.globalAlpha = 1;
      if (b - a < 34 || lane.kind === "idle") continue;
      pen.fillStyle = lane.kind === "host" ? ink.ink : ink.on;
      pen.fillText(fit(sum ? `${sum.count} events` : device.names[lane.n[i]], b - a - 8), a + 4, y + h / 2);
    }
  }
  function drawPath() {
    let before = null;
    pen.fillStyle = ink.path;
    for (const [index, begin, end] of device.path) {
      const y = top(index) + device.lanes[index].height - 2, seen = end > from && begin < to;
      if (seen) pen.fillRect(x(begin), y - 2, Math.max(x(end) - x(begin), 1), 4);
      if (seen && before !== null) pen.fillRect(x(begin) - 0.75, Math.min(before, y), 1.5, Math.abs(y - before));
      before = y;
    }
  }
  function drawMarks(height) {
    pen.fillStyle = ink.mark; marks.forEach((ns, i) => {
      pen.globalAlpha = i === place ? 1 : 0.5; pen.fillRect(Math.round(x(ns)) - 1, RULER - 6, 2, height);
      pen.beginPath(); pen.moveTo(x(ns) - 6, RULER - 8); pen.lineTo(x(ns) + 6, RULER - 8); pen.lineTo(x(ns), RULER); pen.fill();
    });
    pen.globalAlpha = 1;
  }
  const threadOf = (lane, i) => (Array.isArray(lane.h) ? lane.h[i] : lane.h);
  function drawSelected() {
    const [index, i] = selected, lane = device.lanes[index], y = top(index);
    pen.strokeStyle = ink.ink; pen.lineWidth = 2; pen.strokeRect(x(lane.start[i]), y, Math.max(x(lane.end[i]) - x(lane.start[i]), 2), lane.height);
    if (lane.l && lane.l[i] >= 0) arrow(threadOf(lane, i), lane.start[i] - lane.l[i], index, lane.start[i]);
    let drawn = 0;
    if (lane.kind === "host") device.lanes.forEach((other, j) => other.l?.forEach((delay, k) => {
      const call = other.start[k] - delay, mine = delay >= 0 && call >= lane.start[i] && call < lane.end[i];
      if (mine && threadOf(other, k) === index && drawn++ < 60) arrow(index, call, j, other.start[k]);
    }));
  }
  function arrow(thread, call, index, start) {
    const a = x(call), b = x(start), y0 = top(thread), y1 = top(index) + device.lanes[index].height;
    pen.strokeStyle = pen.fillStyle = ink.mark; pen.lineWidth = 1.5; pen.fillRect(a - 2, y0 - 2, 4, 4);
    pen.beginPath(); pen.moveTo(a, y0); pen.bezierCurveTo(a, (y0 + y1) / 2, b, (y0 + y1) / 2, b, y1 + 4); pen.stroke();
    pen.beginPath(); pen.moveTo(b - 4, y1 + 6); pen.lineTo(b + 4, y1 + 6); pen.lineTo(b, y1); pen.fill();
  }
  function tell(box) {
    readout.textContent = "";
    if (!box) return;
    const [index, i] = box, lane = device.lanes[index], sum = lane.sums.get(i), strong = document.createElement("b");
    strong.textContent = sum ? `${sum.count.toLocaleString("en")} events summed up` : device.names[lane.n[i]];
    const parts = [lane.label, `at ${time(lane.start[i])}`, time(lane.d[i])];
    if (sum) parts.push(`${Math.round((100 * sum.busy) / (lane.d[i] || 1))} % of it filled, the longest ${device.names[lane.n[i]]}`);
    if (lane.l && lane.l[i] >= 0) parts.push(`launched ${time(lane.l[i])} before, on ${device.lanes[threadOf(lane, i)].label}`);
    else if (lane.kind === "stream" && !sum) parts.push("no launch on a thread shown");
    readout.append(strong, " · " + parts.join(" · "));
  }
  function hit(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const index = device.lanes.findIndex((lane, i) => px >= gutter && py >= top(i) && py < top(i) + lane.height);
    if (index < 0) return null;
    const lane = device.lanes[index], reach = (to - from) / (width - gutter), at = instant(px);
    let best = null, distance = 2 * reach;
    for (let i = first(lane, at + distance) - 1; i >= 0 && lane.start[i] >= at - lane.longest - distance; i--) {
      const away = Math.max(lane.start[i] - at, at - lane.end[i], 0);
      if (away < distance) { best = [index, i]; distance = away; if (!away) break; }
    }
    return best;
  }
  function select(box, show) {
    selected = box; tell(box);
    const start = box && device.lanes[box[0]].start[box[1]], length = to - from;
    if (box && show && (start < from || device.lanes[box[0]].end[box[1]] > to)) look(start - length / 3, start + (2 * length) / 3);
    redraw();
  }
  function move(by) {
    const [index, i] = selected || [0, first(device.lanes[0], from) - 1], boxes = device.lanes[index].start.length;
    if (boxes) select([index, clamp(i + by, 0, boxes - 1)], true);
  }
  function lane(by) {
    const [index, i] = selected || [0, -1], next = clamp(index + by, 0, device.lanes.length - 1), boxes = device.lanes[next].start;
    const at = selected ? device.lanes[index].start[i] : from;
    if (boxes.length) select([next, clamp(first(device.lanes[next], at), 0, boxes.length - 1)], true);
  }
  function enter() {
    const [index, i] = selected || [0, 0], one = device.lanes[index], room = Math.max(one.d[i], 1000);
    if (selected) look(one.start[i] - room, one.end[i] + room);
  }

  // A finding: its places are marked, the first one is looked at.
  function show(element) {
    const view = Number(element.dataset.view);
    if (view < 0 || !element.dataset.marks) return;
    if (devices[view] !== device) turn(view);
    marks = element.dataset.marks.split(",").map(Number); spread = Number(element.dataset.spread); place = 0;
    byId("places").hidden = marks.length < 2; goTo(0);
  }
  function goTo(number) {
    place = (number + marks.length) % marks.length;
    const room = clamp(spread * 6, 2000, (device.end - device.start) / 3);
    look(marks[place] - room / 3, marks[place] + room);
    readout.textContent = `Place ${place + 1} of ${marks.length}, at ${time(marks[place])}.`;
  }
  function turn(view) {
    device = devices[view]; selected = hovered = null; marks = []; byId("places").hidden = true;
    if (byId("device")) byId("device").value = view;
    whole();
  }
  for (const finding of all("details.finding")) {
    let before = finding.open; // what stands open when the page opens moves nothing
    finding.addEventListener("toggle", () => { if (finding.open && !before) show(finding); before = finding.open; });
  }
  for (const button of all(".show, .jump")) button.addEventListener("click", () => {
    show(button.closest("details.finding") || button);
    byId("timeline").scrollIntoView();
    canvas.focus({ preventScroll: true });
  });

  const left = () => pan(-0.25), right = () => pan(0.25), closer = () => zoom(0.5), wider = () => zoom(2);
  const actions = { in: closer, out: wider, all: whole, left, right, previous: () => goTo(place - 1), next: () => goTo(place + 1) };
  for (const button of all("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
  byId("critical").addEventListener("change", redraw);
  if (byId("device")) byId("device").addEventListener("change", (event) => turn(Number(event.target.value)));
  const keys = {
    ArrowLeft: left, ArrowRight: right, "+": closer, "=": closer, "-": wider, 0: whole, Home: whole, Enter: enter,
    ArrowUp: () => lane(-1), ArrowDown: () => lane(1), n: () => move(1), p: () => move(-1), Escape: () => { marks = []; select(null); },
  };
  canvas.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return; // a page that scrolls goes on scrolling
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) pan((event.deltaX || event.deltaY) / width);
    else zoom(Math.exp(clamp(event.deltaY, -200, 200) / 250), instant(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX); moved = 0; canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) {
      const box = selected ? null : hit(event);
      if (box && String(box) !== String(hovered)) tell((hovered = box));
      return;
    }
    const before = [...fingers.values()], left = canvas.getBoundingClientRect().left;
    const now = [...fingers.set(event.pointerId, event.clientX).values()];
    moved += Math.abs(now[0] - before[0]) + (now.length > 1 ? 9 : 0);
    if (now.length > 1) zoom(clamp(Math.abs(before[0] - before[1]) / Math.max(Math.abs(now[0] - now[1]), 8), 0.5, 2), instant((now[0] + now[1]) / 2 - left));
    else if (moved > 3) pan((before[0] - now[0]) / (width - gutter));
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => {
    if (name === "pointerup" && fingers.size === 1 && moved <= 3) select(hit(event));
    fingers.delete(event.pointerId);
  });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, instant(event.clientX - canvas.getBoundingClientRect().left)));
  byId("overview").addEventListener("click", (event) => {
    if (device !== devices[0]) turn(0);
    const box = event.currentTarget.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * device.wall;
    const half = Math.min(to - from, device.wall / 8) / 2;
    look(at - half, at + half);
  });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readInk);
  addEventListener("beforeprint", () => { readInk(); draw(); });
  readInk(); whole();
})();
