// Copies for an issue, a chat, a spreadsheet.
async function copy(text, button) {
  const status = button.parentElement.querySelector("[role=status]");
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.dataset.copied = text;
  if (status) status.textContent = "copied";
}

const oneLine = (node) => (node ? node.textContent.replace(/\s+/g, " ").trim() : "");

/** A finding as Markdown: what to do, what it gives, what it rests on. */
function issueText(finding) {
  const told = (query) => oneLine(finding.querySelector(query));
  const lines = [
    `### ${told(".title")}`,
    "",
    `**Do:** ${told(".do").replace(/^Do /, "")}`,
    "",
    `**Saves:** ${told(".saves b").replace(/^saves /, "")} (${told(".saves .of")})`,
    "",
    told(".message"),
    "",
  ];
  for (const name of all(".body > dl > dt", finding)) {
    const value = name.nextElementSibling;
    const items = value.matches(":has(> ul)") ? all(":scope > ul > li", value) : [];
    if (name.textContent === "Sources") continue;
    if (items.length) lines.push(`**${name.textContent}**`, ...items.map((item) => `- ${oneLine(item)}`), "");
    else lines.push(`**${name.textContent}:** ${oneLine(value)}`, "");
  }
  const file = oneLine(document.querySelector(".eyebrow span"));
  return [...lines, `From \`${file}\`, by \`advise\`.`, ""].join("\n");
}

/** A table as CSV: of numbers their exact value. */
function csvText(table) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const cell = (one) => quoted(one.dataset.v ?? oneLine(one.querySelector("details code") || one));
  const rows = [...table.tHead.rows, ...[...table.tBodies[0].rows].filter((row) => !row.hidden)];
  return rows.map((row) => [...row.cells].map(cell).join(",")).join("\n") + "\n";
}

for (const button of all("button.issue"))
  button.addEventListener("click", () => copy(issueText(button.closest("details.finding")), button));
for (const button of all("[data-csv]"))
  button.addEventListener("click", () => copy(csvText(byId(button.dataset.csv)), button));
