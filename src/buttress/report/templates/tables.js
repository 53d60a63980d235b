"use strict";
// Sorts, filters and pages tables and lists. Rows after the first page are packed (zlib, base64)
// and unpacked when they are first needed. The page reads well without.
const unpack = async (text) => {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
};

class Rows {
  constructor(body) {
    this.body = body;
    this.packed = body.querySelector(":scope > script[data-packed]");
    this.packed?.remove();
    this.all = [...body.children];
    this.pageSize = this.packed ? this.all.length : Infinity;
    this.total = Number(this.packed?.dataset.total ?? this.all.length);
    this.matches = () => true;
    if (this.packed) this.addPager();
  }

  load() {
    this.loaded ??= this.packed
      ? unpack(this.packed.textContent).then((html) => {
        const holder = this.body.cloneNode(false);
        holder.innerHTML = html;
        this.all.splice(this.pageSize, 0, ...holder.children);
      })
      : Promise.resolve();
    return this.loaded;
  }

  async sort(value, sign) {
    await this.load();
    const keys = new Map(this.all.map((row) => [row, value(row)]));
    this.all.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const difference = Number(x) - Number(y);
      return sign * (Number.isNaN(difference) ? x.localeCompare(y) : difference);
    });
    return this.show();
  }

  // Shows only the rows that match; returns how many they are.
  async filter(matches, isEverything) {
    this.matches = matches;
    if (!isEverything || this.loaded) await this.show();
    return isEverything ? this.total : this.all.filter(matches).length;
  }

  async show(page = 0) {
    await this.load();
    const rows = this.all.filter(this.matches);
    const start = rows.length ? page * this.pageSize || 0 : 0;
    this.page = page;
    this.body.replaceChildren(...rows.slice(start, start + this.pageSize));
    this.describe?.(start, rows.length);
  }

  addPager() {
    const button = (text, step) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", () => this.show((this.page ?? 0) + step));
      return made;
    };
    const [back, next] = [button("Previous", -1), button("Next", 1)];
    const range = document.createElement("output");
    range.setAttribute("aria-live", "polite");
    const pager = document.createElement("p");
    pager.className = "pager";
    pager.append(back, range, next);
    this.describe = (start, count) => {
      const end = Math.min(start + this.pageSize, count);
      range.value = count ? `${start + 1}\u2013${end} of ${count}` : "no rows";
      back.disabled = start === 0;
      next.disabled = end >= count;
    };
    this.describe(0, this.total);
    (this.body.closest(".scroll") ?? this.body).after(pager);
  }
}

const rowsOf = new Map(); // table or list -> its rows
for (const list of document.querySelectorAll("ul:has(> script[data-packed])")) rowsOf.set(list, new Rows(list));
for (const table of document.querySelectorAll("table")) if (table.tBodies[0]) rowsOf.set(table, new Rows(table.tBodies[0]));

// Click a heading to sort its table; rows without a number stay last.
for (const table of document.querySelectorAll("table[data-sortable]")) {
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
      rowsOf.get(table).sort((row) => row.cells[column].dataset.value ?? "", order === "ascending" ? 1 : -1);
    });
  });
}
