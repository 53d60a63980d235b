"use strict";
// Click a heading to sort its table; rows without a number stay last. The page reads well without.
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const first = head.dataset.sort;
    if (!first) return;
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.value ?? "";
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const difference = Number(x) - Number(y);
        return sign * (Number.isNaN(difference) ? x.localeCompare(y) : difference);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
