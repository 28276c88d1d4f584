// A finding: its places are marked, the first one is looked at and what lies there is selected.
function show(source) {
  const number = Number(source.dataset.view);
  if (number < 0 || !source.dataset.marks || !canvas) return;
  if (number !== view.number) turn(number);
  view.marks = source.dataset.marks.split(",").map(Number);
  view.spread = Number(source.dataset.spread);
  byId("places").hidden = view.marks.length < 2;
  goTo(0);
}

function goTo(number) {
  view.place = (number + view.marks.length) % view.marks.length;
  const mark = view.marks[view.place];
  const room = clamp(view.spread * 6, 2000, (view.device.end - view.device.start) / 3);
  look(mark - room / 3, mark + room);
  readout.textContent = `Place ${view.place + 1} of ${view.marks.length}, at ${at(mark)}.`;
}

for (const finding of all("details.finding")) {
  let before = finding.open; // what stands open when the page opens moves nothing
  finding.addEventListener("toggle", () => {
    if (finding.open && !before && view.recalled !== finding) show(finding);
    view.recalled = null;
    before = finding.open;
    view.finding = finding.open ? finding.id.replace("finding-", "") : view.finding;
    redraw();
  });
}
for (const button of all(".show, .jump"))
  button.addEventListener("click", () => {
    show(button.closest("details.finding") || button);
    byId("timeline").scrollIntoView();
    canvas.focus({ preventScroll: true });
  });
