/* alive.js: the storages that are alive at one instant; they sum to the curve. */

/* Storages made by one op of one module, or of modules that differ in their number, for one category,
 * and kept alike: one row. */
function holdersAt(t, i, folded) {
  const rows = new Map();
  for (const s of aliveAt(t, i)) {
    const at = t.events[s.made].at, category = categoryAt(s, i), keeper = t.kept.get(s.storage);
    const kept = keeper ? keeper.name + ", " + keeper.role + " of " + keeper.op : "";
    const key = folded ? [category, family(at.module), at.op, at.phase, kept, s.bytes].join("|") : s.storage;
    const number = (numbered(at.module) || {}).number;
    const row = rows.get(key);
    if (!row) {
      rows.set(key, {category, module: at.module, op: at.op, kept, n: 1, bytes: s.allocated,
        first: number, last: number, storages: [s]});
    } else {
      row.n++, row.bytes += s.allocated, row.storages.push(s);
      row.first = Math.min(row.first, number), row.last = Math.max(row.last, number);
    }
  }
  return [...rows.values()].sort((a, b) => b.bytes - a.bytes);
}

const AT_FIRST = 12; /* rows */
const HOLDERS = [["made by", ""], ["for", "minor"], ["kept as", "minor"], ["", "n"], ["bytes", "n"],
  ["share", "n minor"]];

class Alive {
  constructor(run, id) {
    this.t = run.timeline;
    this.folded = true;
    this.element = h("div", {class: "alive", id: id || null});
  }

  show(event) {
    this.event = event;
    this.shown = AT_FIRST;
    this.draw();
  }

  draw() {
    const {t, event} = this, rows = holdersAt(t, event, this.folded), by = sumsAt(t, event);
    const early = sumOf(CATEGORY_NAMES, name => t.before[name] || 0), alive = sumOf(rows, row => row.bytes) + early;
    const rest = rows.length - this.shown;
    replace(this.element,
      h("p", {class: "instant", "aria-live": "polite"},
        h("b", null, event === t.peak ? "At the peak" : "At event " + thousands(event)),
        " (" + placeText(t, event) + ") ", exact(t.total[event]), " bytes are allocated:"),
      categoryBar(by, t.total[event]),
      h("p", {class: "legend"}, CATEGORY_NAMES.filter(name => t.used.has(name)).map(name =>
        h("span", null, swatch(name), CATEGORIES[name] + " ", exact(by[name] || 0)))),
      table("Storages alive at event " + event, HOLDERS, rows.slice(0, this.shown).map(row => this.row(row)),
        [[[rest > 0 && this.more(rest)], "", "",
          h("span", {title: "storages"}, thousands(sumOf(rows, row => row.n))), exact(alive),
          percent(alive, t.total[event])]]),
      early > 0 && h("p", {class: "note"}, scaled(early) + " were there before the recording began."),
      h("label", {class: "check"}, h("input", {type: "checkbox", checked: this.folded,
        onchange: e => { this.folded = e.target.checked; this.shown = AT_FIRST; this.draw(); }}),
      "alike storages of repeated layers as one row"));
  }

  row(row) {
    const {t} = this, [s] = row.storages, first = t.events[s.made].at;
    const eventText = i => `event ${thousands(i)} (${placeText(t, i)})`;
    const freed = s.freed < Infinity ? "freed at " + eventText(s.freed) : "never freed in these steps";
    const title = `storage ${s.storage}: made at ${eventText(s.made)}, ${freed}`;
    return h("tr", {title, "data-bytes": row.bytes, "data-category": row.category},
      h("th", {scope: "row"}, h("span", {class: "phone"}, swatch(row.category)),
        row.module ? pathText(ofAll(row.module, row.first, row.last)) : first.phase || "no module",
        " ", h("span", {class: "op"}, row.op)),
      h("td", {class: "minor"}, swatch(row.category), CATEGORIES[row.category]), h("td", {class: "minor"}, row.kept),
      h("td", {class: "n"}, row.n > 1 ? thousands(row.n) + " " + TIMES : ""),
      h("td", {class: "n"}, exact(row.bytes)), h("td", {class: "n minor"}, percent(row.bytes, t.total[this.event])));
  }

  more(rest) {
    return h("button", {type: "button", class: "link", onclick: () => { this.shown = Infinity; this.draw(); }},
      "show " + plural(rest, "more row"));
  }
}

function timelineSection(run, most) {
  const alive = new Alive(run, "alive");
  const chart = new Chart(run, {most, label: "Memory over the step: the chosen event",
    chosen: event => alive.show(event)});
  alive.show(chart.cursor);
  const what = run.timeline.events[run.timeline.peak].kind === "oom" ? "Up to the refusal" : "Memory over two steps";
  return section(what,
    "Allocated bytes after each event, by what they are for. Click to see what is alive; drag to zoom.",
    chart.element, h("p", {class: "note keys"}, "Keys: arrows move by an event (with Shift by ten), + and " + MINUS +
      " zoom, 0 shows all, P is the peak."), stepFacts(run.report), h("h3", null, "What is alive"), alive.element);
}
