"use strict";
// Without this script the page shows all its content: the script adds links, sorting, a filter and read-outs.

for (const heading of document.querySelectorAll("main h2")) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = "#" + heading.id;
  link.textContent = heading.textContent;
  item.append(link);
  document.getElementById("sections").append(item);
}

// Sorting

const collator = new Intl.Collator("en", { numeric: true });

function sortKey(cell) {
  const text = cell.textContent.trim();
  const number = Number(text.replace(/[,%]/g, ""));
  return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return collator.compare(String(a), String(b));
}

function sortBy(table, column, direction) {
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return direction * compare(a.key, b.key);
  });
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

for (const table of document.querySelectorAll("table[data-sortable]")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const isText = typeof sortKey(table.tBodies[0].rows[0].cells[column]) === "string";
      const first = isText ? "ascending" : "descending";
      const other = isText ? "descending" : "ascending";
      const order = header.getAttribute("aria-sort") === first ? other : first;
      headers.forEach((one) => one.setAttribute("aria-sort", one === header ? order : "none"));
      sortBy(table, column, order === "ascending" ? 1 : -1);
    });
  });
}

// Filter

for (const input of document.querySelectorAll("input[data-filter]")) {
  const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
  const names = rows.map((row) => (row.cells[0].querySelector("bdi").title || row.cells[0].textContent).toLowerCase());
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !names[index].includes(wanted);
      shown += !row.hidden;
    });
    document.getElementById(`${input.dataset.filter}-count`).textContent = wanted ? `${shown} of ${rows.length}` : "";
  });
}

// Values of curves: at the pointer, and with the arrow keys on a range input

function nearest(values, wanted) {
  let low = 0;
  let high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle;
    else high = middle;
  }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
}

function addReadout(figure, svg) {
  const [left, right, top, bottom, low, high] = svg.dataset.frame.split(" ").map(Number);
  const curves = [...svg.querySelectorAll("polyline")].map((line) => ({
    name: line.dataset.name,
    x: line.dataset.x.split(" ").map(Number),
    y: line.dataset.y.split(" ").map(Number),
  }));
  const positions = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  const range = document.createElement("input");
  Object.assign(range, { type: "range", className: "scrub", min: 0, max: positions.length - 1, value: positions.length - 1 });
  const title = svg.querySelector("title").textContent;
  range.setAttribute("aria-label", `${title}, values by ${svg.dataset.x}`);
  const readout = document.createElement("div");
  readout.className = "readout";
  const plot = document.createElement("div");
  plot.className = "plot";
  svg.replaceWith(plot);
  plot.append(svg, range);
  figure.append(readout);

  function show(index) {
    const position = positions[index];
    const x = left + ((position - low) / (high - low)) * (right - left);
    cursor.setAttribute("d", `M${x} ${top}V${bottom}`);
    const parts = curves.flatMap((curve) => {
      const at = nearest(curve.x, position);
      if (Math.abs(curve.x[at] - position) > 0.02 * (high - low)) return [];
      const value = Number(curve.y[at].toPrecision(4));
      return [curves.length > 1 ? `${curve.name} ${value}` : String(value)];
    });
    readout.textContent = `${svg.dataset.x} ${position}: ${parts.join(", ")}`;
    range.setAttribute("aria-valuetext", readout.textContent);
  }

  function hide() {
    cursor.removeAttribute("d");
    readout.textContent = "";
  }

  range.addEventListener("input", () => show(range.valueAsNumber));
  range.addEventListener("focus", () => show(range.valueAsNumber));
  range.addEventListener("blur", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    show(nearest(positions, low + ((x - left) / (right - left)) * (high - low)));
  });
  svg.addEventListener("pointerleave", () => document.activeElement !== range && hide());
}

for (const svg of document.querySelectorAll("svg[data-frame]")) addReadout(svg.closest("figure"), svg);
