// What is known of a box: a line while pointing at it, a panel once it is selected.
const readout = byId("box");
const panel = byId("selection");

function tell(box) {
  readout.textContent = "";
  if (!box) return;
  const [index, i] = box;
  const { device } = view;
  const lane = device.lanes[index];
  const detail = device.details[lane.n[i]];
  const count = lane.count[i];
  const name = device.texts[detail[details.name]];
  const cause = data.labels[detail[details.slot]];
  const title =
    count > 1 ? `${count.toLocaleString("en")} boxes summed up` : lane.kind === "idle" ? cause : name;
  const parts = [lane.label, `at ${at(lane.start[i])}`, duration(lane.d[i])];
  if (lane.kind === "idle" && name && count === 1) parts.push(name);
  if (count > 1) {
    const busy = `${Math.round((100 * lane.busy[i]) / (lane.d[i] || 1))} % of it filled`;
    parts.push(lane.kind === "idle" ? `${cause}, ${busy}` : `${busy}, the longest ${name}`);
  }
  if (lane.l && lane.l[i] >= 0) parts.push(`launched ${duration(lane.l[i])} before`);
  else if (lane.kind === "stream" && count === 1) parts.push("no launch on a thread shown");
  readout.append(element("b", title), ` · ${parts.join(" · ")}`);
}

/** [what, value] of the selected box, as far as it is known. */
function facts([index, i]) {
  const { device } = view;
  const lane = device.lanes[index];
  const detail = device.details[lane.n[i]];
  const text = (field) => device.texts[detail[details[field]]];
  const found = [
    ["where", lane.label],
    ["at", at(lane.start[i])],
    ["length", duration(lane.d[i])],
  ];
  if (lane.count[i] > 1)
    found.push(["sums up", `${lane.count[i].toLocaleString("en")} boxes, ${duration(lane.busy[i])} together`]);
  if (text("full")) found.push(["name", text("full")]);
  if (lane.kind !== "idle") found.push(["kind", data.labels[detail[details.slot]]]);
  if (text("cause")) {
    const how = [text("side") && `${text("side")} side`, text("grade")].filter(Boolean).join(", ");
    found.push(["cause", `${data.labels[detail[details.slot]]} (${how})`]);
    if (text("name")) found.push(["decided by", text("name")]);
  }
  found.push(["operator", text("operator")], ["shapes", text("shapes")]);
  if (text("grid")) found.push(["grid", `${text("grid")}${text("block") ? ` × ${text("block")}` : ""}`]);
  const reachable = detail[details.reachable];
  if (reachable !== null)
    found.push([
      "of reachable",
      `${(100 * reachable).toFixed(1)} % of the roofline's speed, mean of its kind (modelled)`,
    ]);
  if (lane.l && lane.l[i] >= 0)
    found.push(["launched", `${duration(lane.l[i])} before it began, at ${at(lane.start[i] - lane.l[i])}`]);
  const stack = device.stacks[detail[details.stack]].map((one) => device.texts[one]);
  if (stack.length) found.push(["stack", stack.join("\n")]);
  return found.filter(([, value]) => value);
}

const findingOf = ([index, i]) => view.device.details[view.device.lanes[index].n[i]][details.finding];
const findingElement = (number) =>
  all("details.finding").find(
    (one) => Number(one.dataset.view) === view.number && Number(one.dataset.number) === number,
  );

function tellSelection() {
  if (!panel) return;
  panel.hidden = !view.selected;
  if (!view.selected) return;
  const [index, i] = view.selected;
  const lane = view.device.lanes[index];
  const detail = view.device.details[lane.n[i]];
  const name = view.device.texts[detail[details.name]];
  panel.querySelector("h3").textContent = lane.kind === "idle" ? data.labels[detail[details.slot]] : name;
  const list = panel.querySelector("dl");
  list.textContent = "";
  for (const [what, value] of facts(view.selected)) {
    list.append(element("dt", what), element("dd", value));
  }
  const buttons = panel.querySelector("p");
  buttons.textContent = "";
  const finding = findingElement(findingOf(view.selected));
  if (finding) {
    const title = oneLine(finding.querySelector(".title"));
    const link = element("button", `Finding ${finding.dataset.number}: ${title}`, {
      type: "button",
      className: "to-finding",
    });
    link.addEventListener("click", () => {
      finding.open = true;
      finding.querySelector("summary").focus();
      finding.scrollIntoView({ block: "center" });
    });
    buttons.append(link);
  }
  const zoomTo = element("button", "Zoom to it", { type: "button" });
  zoomTo.addEventListener("click", enter);
  buttons.append(zoomTo);
}

function select(box, show) {
  view.selected = box;
  tell(box);
  tellSelection();
  if (box && show) {
    const lane = view.device.lanes[box[0]];
    const [start, end] = [lane.start[box[1]], lane.end[box[1]]];
    const length = view.to - view.from;
    if (start < view.from || end > view.to) look(start - length / 3, start + (2 * length) / 3);
  }
  redraw();
}

/** The next or previous box of the lane. */
function move(by) {
  const shown = shownLanes();
  const [index, i] = view.selected || [shown[0].index, firstFrom(shown[0].lane, view.from) - 1];
  const boxes = view.device.lanes[index].start.length;
  if (boxes) select([index, clamp(i + by, 0, boxes - 1)], true);
}

/** The box at about the same time on the lane above or below. */
function changeLane(by) {
  const shown = shownLanes();
  const now = view.selected ? shown.findIndex((one) => one.index === view.selected[0]) : 0;
  const next = shown[clamp(now + by, 0, shown.length - 1)];
  const ns = view.selected ? view.device.lanes[view.selected[0]].start[view.selected[1]] : view.from;
  const boxes = next.lane.start.length;
  if (boxes) select([next.index, clamp(firstFrom(next.lane, ns), 0, boxes - 1)], true);
}

function enter() {
  if (!view.selected) return;
  const [index, i] = view.selected;
  const lane = view.device.lanes[index];
  const room = Math.max(lane.d[i], 1000);
  look(lane.start[i] - room, lane.end[i] + room);
}
