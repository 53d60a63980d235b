"use strict";
// Two models on the same images: who is right where, the difference, its interval, McNemar's test.
const groups = JSON.parse(document.getElementById("flags").textContent);
const form = document.getElementById("compare");
const [where, first, second] = ["where", "a", "b"].map((name) => form.elements[name]);

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

const split = (a, b, images) => {
  const count = { a: 0, b: 0, onlyA: 0, onlyB: 0, images };
  for (let i = 0; i < images; i += 1) {
    const x = (a[i >> 3] >> (7 - (i & 7))) & 1;
    const y = (b[i >> 3] >> (7 - (i & 7))) & 1;
    count.a += x;
    count.b += y;
    count.onlyA += x & ~y & 1;
    count.onlyB += y & ~x & 1;
  }
  return count;
};

// Exact and two-sided: twice the tail of a fair coin, in logarithms so that nothing underflows.
const mcnemar = (b, c) => {
  const n = b + c;
  let log = -n * Math.LN2;
  let tail = 0;
  for (let k = 0; k <= Math.min(b, c); k += 1) {
    tail += Math.exp(log);
    log += Math.log(n - k) - Math.log(k + 1);
  }
  return Math.min(1, 2 * tail);
};

// The score interval of a paired difference (Tango, Statistics in Medicine 17, 1998).
const score = (b, c, n, delta) => {
  const linear = -b - c + (2 * n - b + c) * delta;
  const constant = -c * delta * (1 - delta);
  const root = Math.sqrt(Math.max(linear * linear - 8 * n * constant, 0));
  const q = (root - linear) / (4 * n);
  const variance = n * (2 * q + delta * (1 - delta));
  const gap = b - c - n * delta;
  return variance > 0 ? gap / Math.sqrt(variance) : Math.sign(gap) * Infinity;
};
const lowest = (b, c, n) => {
  let [low, high] = [-1, (b - c) / n];
  for (let i = 0; i < 60; i += 1) {
    const middle = (low + high) / 2;
    if (score(b, c, n, middle) > 1.959963984540054) low = middle;
    else high = middle;
  }
  return high;
};

const percent = (share) => (100 * share).toFixed(1);
const signed = (share) => (share >= 0 ? "+" : "\u2212") + percent(Math.abs(share));
const spelt = (p) => (p < 0.001 ? "< 0.001" : p.toFixed(3));

const cells = (column, a, b, images) => {
  if (!a || !b) return [column, ...Array(7).fill("\u2013")];
  const s = split(bytes(a), bytes(b), images);
  const low = lowest(s.onlyA, s.onlyB, images);
  const high = -lowest(s.onlyB, s.onlyA, images);
  return [
    column, percent(s.a / images), percent(s.b / images), signed((s.onlyA - s.onlyB) / images),
    `${signed(low)} to ${signed(high)}`, s.onlyA, s.onlyB, spelt(mcnemar(s.onlyA, s.onlyB)),
  ];
};

const compareRuns = (a, b, images) => {
  if (!a.flags[0] || !b.flags[0]) return "One of the two evaluations is incomplete: there is no worst-case robust accuracy to compare.";
  const s = split(bytes(a.flags[0]), bytes(b.flags[0]), images);
  if (mcnemar(s.onlyA, s.onlyB) > 0.05) return "The worst-case robust accuracies do not differ significantly on these images.";
  const better = s.onlyA > s.onlyB ? a : b;
  return `${better.name} has significantly higher worst-case robust accuracy (McNemar, p < 0.05).`;
};

const link = (row) => {
  const made = document.createElement("a");
  made.href = row.page;
  made.textContent = row.name;
  return made;
};

const show = () => {
  const group = groups[where.value];
  const [a, b] = [group.rows[first.value], group.rows[second.value]];
  document.getElementById("name-a").replaceChildren("A: ", link(a));
  document.getElementById("name-b").replaceChildren("B: ", link(b));
  document.getElementById("comparison").textContent = compareRuns(a, b, group.images);
  const body = document.getElementById("numbers");
  body.replaceChildren();
  group.columns.forEach((column, k) => {
    const row = body.insertRow();
    cells(column, a.flags[k], b.flags[k], group.images).forEach((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (i) cell.className = "n";
      else cell.scope = "row";
      cell.textContent = text;
      row.append(cell);
    });
  });
  const few = group.left_out;
  document.getElementById("left-out").textContent = few
    ? `The best ${group.rows.length} models can be chosen here; ${few} more are in the leaderboard.` : "";
};

const fill = () => {
  for (const [box, chosen] of [[first, 0], [second, 1]]) {
    box.replaceChildren(...groups[where.value].rows.map((row, i) => new Option(row.name, i)));
    box.value = chosen;
  }
};

groups.forEach((group, i) => where.append(new Option(group.title, i)));
const wanted = new URLSearchParams(location.hash.slice(1)).get("a");
const place = groups.findIndex((g) => g.rows.some((r) => r.slug === wanted));
if (place >= 0) where.value = place;
fill();
if (place >= 0) {
  const index = groups[place].rows.findIndex((r) => r.slug === wanted);
  first.value = index;
  if (index === 1) second.value = 0;
}
where.addEventListener("change", () => { fill(); show(); });
first.addEventListener("change", show);
second.addEventListener("change", show);
for (const part of document.querySelectorAll("[data-needs-script]")) part.hidden = false;
show();
