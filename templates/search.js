// Search: what matches stays as it is, the rest fades; the buttons go from match to match in time.
function search(words) {
  const { device } = view;
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const status = byId("matches");
  if (!wanted.length) {
    view.matches = null;
    status.textContent = "";
    return redraw();
  }
  const texts = device.texts.map((text) => text.toLowerCase());
  view.matches = Uint8Array.from(device.details, (detail) => {
    const told = [
      detail[details.name],
      detail[details.full],
      detail[details.operator],
      detail[details.shapes],
      ...device.stacks[detail[details.stack]],
    ];
    const text = [...told.map((one) => texts[one]), data.labels[detail[details.slot]]].join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word)) ? 1 : 0;
  });
  let [count, ns] = [0, 0];
  for (const lane of device.lanes)
    for (let i = 0; i < lane.n.length; i++)
      if (view.matches[lane.n[i]]) {
        count += lane.count[i];
        ns += lane.busy[i];
      }
  status.textContent = count ? `${count.toLocaleString("en")} boxes, ${rounded(ns)}` : "nothing found";
  redraw();
}

/** The next match after the selected box, or the one before it. */
function goToMatch(by) {
  if (!view.matches) return;
  const order = ([index, i]) => [view.device.lanes[index].start[i], index, i];
  const before = (a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2];
  const here = view.selected ? order(view.selected) : [by > 0 ? view.from - 1 : view.to, -1, -1];
  let best = null;
  for (const { lane, index } of shownLanes())
    for (let i = 0; i < lane.n.length; i++) {
      if (!view.matches[lane.n[i]]) continue;
      const there = order([index, i]);
      if (by * before(there, here) <= 0) continue;
      if (!best || by * before(there, order(best)) < 0) best = [index, i];
    }
  if (best) select(best, true);
}
