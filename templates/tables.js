// Tables: a click on a head sorts, numbers from the largest; a filter hides the rows that lack its words.
function sortable(table) {
  const body = table.tBodies[0];
  all("th button", table).forEach((button, column) => {
    const head = button.closest("th");
    const numeric = head.classList.contains("num");
    const key = (row) =>
      numeric ? Number(row.cells[column].dataset.v) : row.cells[column].textContent.toLowerCase();
    button.disabled = false;
    button.addEventListener("click", () => {
      const [first, other] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = head.getAttribute("aria-sort") === first ? other : first;
      const sign = order === "ascending" ? 1 : -1;
      for (const each of all("th", table)) each.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", order);
      const compare = (a, b) => sign * (numeric ? key(a) - key(b) : key(a).localeCompare(key(b)));
      body.append(...[...body.rows].sort(compare));
    });
  });
}

function filtered(input) {
  const rows = [...byId(input.dataset.filter).tBodies[0].rows];
  const status = input.closest("p").querySelector("[role=status]");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const left = rows.filter((row) => !row.hidden).length;
    status.textContent = input.value ? `${left} of ${rows.length}` : "";
  });
}

all("table.sortable").forEach(sortable);
all("[data-filter]").forEach(filtered);
