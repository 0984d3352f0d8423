/* text.js: elements, numbers, names. All text goes in as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/* Names from outside, without controls and orders of bidirectional text, which hide what they are. */
const readable = text =>
  typeof text === "string" ? text.replace(/[\p{Cc}\p{Bidi_Control}]/gu, c => c === "\n" ? c : "?") : text;

/* Children are elements or text; null and false are left out. */
function put(parent, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) parent.append(readable(child));
  }
  return parent;
}

/* An attribute that begins with "on" is a listener. */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, readable(value));
  }
  return put(element, children);
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const replace = (element, ...children) => put((element.replaceChildren(), element), children);

/* ---- numbers ---- */

const MINUS = "\u2212", TIMES = "\u00d7", DASH = "\u2013", DOT = " \u00b7 ";

const thousands = n => n.toLocaleString("en-US").replace("-", MINUS);
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/* "1.5 GiB", as the program prints it. */
function scaled(bytes) {
  let value = Math.abs(bytes), unit = 0;
  while (value >= (unit ? 1023.995 : 1024) && unit + 1 < UNITS.length) value /= 1024, unit++;
  const digits = value.toFixed(2).replace(/\.?0+$/, "");
  return (bytes < 0 ? MINUS : "") + digits + "\u00a0" + UNITS[unit];
}

/* Bytes that a program can read back, too: <data value="83886080">. */
const exact = bytes => h("data", {value: bytes}, thousands(bytes));
const rounded = bytes => h("data", {value: bytes, title: thousands(bytes) + " bytes"}, scaled(bytes));
const signed = n => (n > 0 ? "+" : "") + thousands(n);
const percent = (part, whole) => whole ? (100 * part / whole).toFixed(1) + "\u00a0%" : "";
const share = (part, whole) => whole ? Math.max(0, Math.min(100, 100 * part / whole)) : 0;

/* "3.31 T" */
function counted(n) {
  const units = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];
  let unit = 0, value = Math.abs(n);
  while (value >= 999.5 && unit + 1 < units.length) value /= 1000, unit++;
  const text = unit || !Number.isInteger(value) ? value.toPrecision(3) : String(value);
  return (n < 0 ? MINUS : "") + text + (units[unit] ? "\u00a0" + units[unit] : "");
}

/* "3.31 TFLOP" */
const work = n => counted(n).replace(/\d$/, "$&\u00a0") + "FLOP";

function duration(seconds) {
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "\u00b5s"]];
  const [size, name] = units.find(([size]) => Math.abs(seconds) >= size) || units[2];
  return (seconds / size).toPrecision(3) + "\u00a0" + name;
}

const sumOf = (list, f) => list.reduce((sum, item) => sum + f(item), 0);

/* ---- names ---- */

const CATEGORIES = {
  parameter: "parameters", gradient: "gradients", optimizer: "optimizer state", input: "input",
  activation: "activations", output: "output", rng_state: "RNG state", packed: "packed copies",
  cache: "cache", temporary: "temporaries", workspace: "workspace", communication: "communication",
};
const CATEGORY_NAMES = Object.keys(CATEGORIES);

const swatch = category => h("span", {class: "swatch c-" + category, "aria-hidden": "true"});
const plural = (n, one, many) => thousands(n) + " " + (n === 1 ? one : many || one + "s");

/* A path's first component that is a number, with what stands before and after it; null if it has none. */
function numbered(path) {
  const parts = path.split("."), at = parts.findIndex(part => /^\d+$/.test(part));
  if (at < 0) return null;
  return {before: parts.slice(0, at), number: Number(parts[at]), after: parts.slice(at + 1)};
}

/* "gpt.h.#.mlp", for comparing, and "gpt.h.0-11.mlp" for numbers first to last. */
function family(path) {
  const n = numbered(path);
  return n ? [...n.before, "#", ...n.after].join(".") : path;
}
function ofAll(path, first, last) {
  const n = numbered(path);
  const range = first === last ? String(first) : first + "-" + last;
  return n && first !== undefined ? [...n.before, range, ...n.after].join(".") : path;
}

/* A path may be broken after its dots. */
function pathText(path) {
  const parts = path.split(".");
  return h("span", {class: "path"}, parts.map((part, i) =>
    i + 1 < parts.length ? [part + ".", h("wbr")] : part));
}

/* ---- parts of the page ---- */

let sections = 0;
function section(title, note, ...children) {
  const id = "section-" + ++sections;
  return h("section", {"aria-labelledby": id}, h("h2", {id}, title), note && h("p", {class: "note"}, note), children);
}

/* Buttons of which one is pressed; choose(value) is called with the chosen one. */
function choice(label, values, chosen, choose) {
  const buttons = values.map(([value, text]) => h("button", {
    type: "button", "aria-pressed": String(value === chosen), "data-value": value,
    onclick: () => {
      for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.value === value));
      choose(value);
    },
  }, text));
  return h("span", {class: "choice", role: "group", "aria-label": label}, buttons);
}

const numberCell = (...children) => h("td", {class: "n"}, children);
const headRow = columns => h("thead", null, h("tr", null, columns.map(([heading, kind]) =>
  h("th", {scope: "col", class: kind}, heading))));

/* A frame in which a wide table scrolls, also by keyboard. */
const scroller = (label, ...children) =>
  h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, children);

/* columns: [heading, class]; rows: arrays of cells, or <tr>s. */
function table(label, columns, rows, foot) {
  const row = cells => cells instanceof Element ? cells
    : h("tr", null, cells.map((cell, i) => h(i ? "td" : "th", {class: columns[i][1], scope: i ? null : "row"}, cell)));
  return scroller(label, h("table", null, headRow(columns), h("tbody", null, rows.map(row)),
    foot && h("tfoot", null, foot.map(row))));
}
