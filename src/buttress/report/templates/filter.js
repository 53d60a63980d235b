"use strict";
// Shows only the rows and tables that match the filters. The page reads well without.
for (const form of document.querySelectorAll("form[data-filter]")) {
  const boards = [...document.querySelectorAll("section[data-dataset]")];
  const count = form.querySelector("output");
  const chosen = (name) => form.elements[name]?.value ?? "";
  let latest = 0;
  const apply = async () => {
    const turn = latest += 1;
    const words = chosen("text").toLowerCase().split(/\s+/).filter(Boolean);
    const fields = ["category", "training"].filter(chosen);
    const matches = (row) => fields.every((k) => row.dataset[k] === chosen(k))
      && words.every((w) => row.dataset.text.toLowerCase().includes(w));
    let [shown, total] = [0, 0];
    for (const board of boards) {
      board.hidden = ["dataset", "suite"].some((k) => chosen(k) && board.dataset[k] !== chosen(k));
      const rows = rowsOf.get(board.querySelector("table.leaderboard"));
      const found = await rows.filter(matches, !words.length && !fields.length);
      if (turn !== latest) return; // a newer filter is at work
      total += rows.total;
      shown += board.hidden ? 0 : found;
    }
    count.value = `${shown} of ${total} rows shown`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  form.hidden = false;
  apply();
}
