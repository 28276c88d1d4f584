// The address says what is shown: #t=FROM-TO in ms from the recording's first event, sel=LANE.BOX, finding=N, device=N.
function remember() {
  const ms = (ns) => ((ns + view.device.origin) / 1e6).toFixed(6);
  const told = [];
  const everything = view.from === view.device.start && view.to === view.device.end;
  if (!everything) told.push(`t=${ms(view.from)}-${ms(view.to)}`);
  if (view.selected) told.push(`sel=${view.selected.join(".")}`);
  if (view.finding) told.push(`finding=${view.finding}`);
  if (view.number) told.push(`device=${view.number}`);
  const wanted = told.length ? `#${told.join("&")}` : "";
  const ours = /^#(t|sel|finding|device)=/.test(location.hash);
  if (location.hash !== wanted && (wanted || ours))
    history.replaceState(null, "", wanted || location.pathname + location.search);
}

/** What an address asks for; anything that is not there is left out. */
function recall() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const finding = byId(`finding-${asked.get("finding")}`);
  if (finding) {
    view.finding = asked.get("finding");
    if (!finding.open) view.recalled = finding; // the address says what is looked at
    finding.open = true;
    finding.scrollIntoView({ block: "center" });
  }
  if (!canvas) return;
  const number = Number(asked.get("device") || 0);
  if (data.devices[number] && number !== view.number) turn(number);
  const [lane, box] = (asked.get("sel") || "").split(".").map(Number);
  if (view.device.lanes[lane]?.start.length > box) {
    if (view.device.lanes[lane].depth >= SHALLOW) byId("deep").checked = true;
    select([lane, box], !asked.get("t"));
  }
  const [from, to] = (asked.get("t") || "")
    .split(/(?<=\d)-/)
    .map((ms) => Number(ms) * 1e6 - view.device.origin);
  if (to > from) look(from, to);
}
