"use strict";
// Shows only the rows and tables that fit what is asked. The page reads well without.
for (const form of document.querySelectorAll("form[data-filter]")) {
  const boards = [...document.querySelectorAll("section[data-dataset]")];
  const said = form.querySelector("output");
  const asked = (name) => form.elements[name]?.value ?? "";
  const apply = () => {
    const words = asked("text").toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    let total = 0;
    for (const board of boards) {
      const fits = ["dataset", "suite"].every((k) => !asked(k) || board.dataset[k] === asked(k));
      board.hidden = !fits;
      for (const row of board.querySelectorAll("tr[data-training]")) {
        const text = row.dataset.text.toLowerCase();
        const same = ["category", "training"].every((k) => !asked(k) || row.dataset[k] === asked(k));
        row.hidden = !(same && words.every((w) => text.includes(w)));
        total += 1;
        shown += fits && !row.hidden;
      }
    }
    said.value = `${shown} of ${total} rows shown`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  form.hidden = false;
  apply();
}
