// Elements from data. Every text is set as text: what models and people wrote is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return element;
}

export const h = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

export const section = (title, ...children) => h("section", {}, h("h2", {}, title), ...children);

export function wide(node) {
  node.classList.add("wide");
  return node;
}

// columns: [title, row => text or node, "n" for numbers]
export function table(columns, rows, empty = "nothing yet") {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const head = columns.map(([title, , kind = ""]) => h("th", { class: kind }, title));
  const body = rows.map((row) => h("tr", {}, ...columns.map(([, cell, kind = ""]) => h("td", { class: kind }, cell(row) ?? "–"))));
  return h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, ...pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))));
}

export const number = (value, digits = 2) =>
  value === null || value === undefined ? "–" : Number(value).toLocaleString("en", { maximumFractionDigits: digits });

export const percent = (share) => (share === null || share === undefined || Number.isNaN(share) ? "–" : `${number(100 * share, share < 0.1 ? 1 : 0)} %`);

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = count > 0 ? Math.min(Math.floor(Math.log2(count) / 10), units.length - 1) : 0;
  return `${number(count / 1024 ** power, 1)} ${units[power]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (Math.abs(seconds) < 1e-6) return "0 s";
  if (seconds > 0 && seconds < 0.0005) return `${number(1e6 * seconds, 0)} µs`;
  if (seconds > 0 && seconds < 0.95) return `${number(1000 * seconds, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 90) return `${number(seconds, 1)} s`;
  if (seconds < 5400) return `${number(seconds / 60, 1)} min`;
  return `${number(seconds / 3600, 1)} h`;
}

export const when = (time) => (time ? new Date(time).toLocaleString() : "–");
