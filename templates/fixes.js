// With these changes: the strip and the numbers of the fixes that are checked.
const data = byId("data")
  ? JSON.parse(byId("data").textContent)
  : { slots: [], labels: [], devices: [], fixes: [], heat: null };
const SVG = "http://www.w3.org/2000/svg";

function drawFixes() {
  const chosen = all("[data-fix]")
    .filter((box) => box.checked)
    .map((box) => Number(box.dataset.fix));
  const rules = all("[data-fix]")
    .filter((box) => box.checked)
    .map((box) => oneLine(box.parentElement.querySelector("code")));
  const variant = data.fixes.find((one) => String(one.fixes) === String(chosen));
  const after = byId("after");
  const text = byId("after-text");
  after.textContent = "";
  if (!variant) {
    text.textContent = "No change is chosen: nothing is replayed.";
    byId("after-ns").textContent = byId("expects").textContent = "";
    byId("promise").setAttribute("width", 0);
    return;
  }
  const strip = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({
    width: `${variant.width}%`,
    height: "100%",
    viewBox: `0 0 ${variant.bins} 100`,
    preserveAspectRatio: "none",
  }))
    strip.setAttribute(name, value);
  for (const [colour, path] of variant.paths) {
    const drawn = document.createElementNS(SVG, "path");
    drawn.setAttribute("class", `k-${colour}`);
    drawn.setAttribute("d", path);
    strip.append(drawn);
  }
  after.append(strip);
  after.dataset.saves = variant.saves;
  byId("after-ns").textContent = rounded(variant.ns);
  byId("expects").textContent = between(...variant.expects);
  byId("promise").setAttribute("x", `${variant.ends[0]}%`);
  byId("promise").setAttribute("width", `${Math.max(variant.ends[1] - variant.ends[0], 0.4)}%`);
  const [slow, fast] = variant.speedup.map((one) => one.toFixed(2));
  text.textContent = `${rules.join(", ")}: saves ${between(...variant.saves)} of the window, `;
  text.append(slow === fast ? `${slow}×` : `${slow}× to ${fast}×`);
  text.append(". The same numbers: ", element("code", `--what-if ${rules.join(",")}`));
}
for (const box of all("[data-fix]")) box.addEventListener("change", drawFixes);
