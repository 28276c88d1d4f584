// Buttons, keys, wheel, mouse and fingers.
function hit(event) {
  const box = canvas.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  const here = shownLanes().find(({ y, height }) => px >= view.gutter && py >= y && py < y + height);
  if (!here) return null;
  const { lane, index } = here;
  const reach = (view.to - view.from) / (view.width - view.gutter);
  const ns = instant(px);
  let best = null;
  let distance = 2 * reach;
  for (
    let i = firstFrom(lane, ns + distance) - 1;
    i >= 0 && lane.start[i] >= ns - lane.longest - distance;
    i--
  ) {
    const away = Math.max(lane.start[i] - ns, ns - lane.end[i], 0);
    if (away < distance) {
      best = [index, i];
      distance = away;
      if (!away) break;
    }
  }
  return best;
}

const actions = {
  in: () => zoom(0.5),
  out: () => zoom(2),
  all: whole,
  left: () => pan(-0.25),
  right: () => pan(0.25),
  previous: () => goTo(view.place - 1),
  next: () => goTo(view.place + 1),
  "found-before": () => goToMatch(-1),
  "found-after": () => goToMatch(1),
};
const keys = {
  ArrowLeft: actions.left,
  ArrowRight: actions.right,
  "+": actions.in,
  "=": actions.in,
  "-": actions.out,
  0: whole,
  Home: whole,
  Enter: enter,
  ArrowUp: () => changeLane(-1),
  ArrowDown: () => changeLane(1),
  n: () => move(1),
  p: () => move(-1),
  Escape: () => {
    view.marks = [];
    select(null);
  },
};

function listenToControls() {
  for (const button of all("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
  byId("critical")?.addEventListener("change", redraw);
  byId("deep").addEventListener("change", redraw);
  byId("device")?.addEventListener("change", (event) => turn(Number(event.target.value)));
  const field = byId("search");
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") goToMatch(event.shiftKey ? -1 : 1);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function listenToWheel() {
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return; // a page that scrolls goes on scrolling
      event.preventDefault();
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (sideways) pan((event.deltaX || event.deltaY) / view.width);
      else
        zoom(
          Math.exp(clamp(event.deltaY, -200, 200) / 250),
          instant(event.clientX - canvas.getBoundingClientRect().left),
        );
    },
    { passive: false },
  );
  byId("overview")?.addEventListener("click", (event) => {
    if (view.number !== 0) turn(0);
    const box = event.currentTarget.getBoundingClientRect();
    const { device } = view;
    const ns = device.start + ((event.clientX - box.left) / box.width) * (device.end - device.start);
    const half = Math.min(view.to - view.from, (device.end - device.start) / 8) / 2;
    look(ns - half, ns + half);
  });
}

function listenToPointers() {
  const fingers = new Map();
  let moved = 0;
  let pointedAt = "";
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX);
    moved = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) {
      const box = hit(event);
      if (box && String(box) !== pointedAt) tell(box);
      else if (!box && pointedAt) tell(view.selected);
      pointedAt = box ? String(box) : "";
      return;
    }
    const before = [...fingers.values()];
    const now = [...fingers.set(event.pointerId, event.clientX).values()];
    moved += Math.abs(now[0] - before[0]) + (now.length > 1 ? 9 : 0);
    if (now.length > 1) {
      const factor = Math.abs(before[0] - before[1]) / Math.max(Math.abs(now[0] - now[1]), 8);
      zoom(clamp(factor, 0.5, 2), instant((now[0] + now[1]) / 2 - canvas.getBoundingClientRect().left));
    } else if (moved > 3) pan((before[0] - now[0]) / (view.width - view.gutter));
  });
  for (const name of ["pointerup", "pointercancel"])
    canvas.addEventListener(name, (event) => {
      if (name === "pointerup" && fingers.size === 1 && moved <= 3) select(hit(event));
      fingers.delete(event.pointerId);
    });
  canvas.addEventListener("dblclick", (event) =>
    zoom(0.4, instant(event.clientX - canvas.getBoundingClientRect().left)),
  );
}
