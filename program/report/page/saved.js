/* saved.js: what the tape keeps: by module, as a disk-usage view does, or as a list. */

/* Each saved storage with what the timeline adds: its category right after forward, and its events. */
function savedOf(run) {
  const t = run.timeline, forward = t && t.phases.find(phase => phase.name === "forward");
  return run.report.saved.tensors.map(tensor => {
    const s = t && t.storages.get(tensor.storage);
    return {...tensor, life: s, category: s && forward ? categoryAt(s, forward.to - 1) : "", count: 1};
  });
}

/* Equal storages of repeated layers as one, with how many they are. */
function foldSaved(tensors) {
  const rows = new Map();
  for (const t of tensors) {
    const also = t.also.map(a => [family(a.module), a.op, a.role, a.name]);
    const key = JSON.stringify([family(t.module), t.op, t.role, t.name, t.shape, t.dtype, t.bytes, also]);
    const number = (numbered(t.module) || {}).number, row = rows.get(key);
    if (row) row.count++, row.last = number;
    else rows.set(key, {...t, first: number, last: number});
  }
  return [...rows.values()];
}

/* ---- the tree ---- */

const newNode = name => ({name, children: new Map(), tensors: [], count: 1});

function treeOf(tensors) {
  const root = newNode("");
  for (const t of tensors) {
    let node = root;
    for (const part of t.module ? t.module.split(".") : ["(no module)"]) {
      if (!node.children.has(part)) node.children.set(part, newNode(part));
      node = node.children.get(part);
    }
    node.tensors.push(t);
  }
  return settle(root);
}

/* Sums a node up, joins it with an only child, and folds children that are alike but for their number. */
function settle(node) {
  const children = [...node.children.values()].map(settle), folded = [];
  for (const child of children) {
    const last = folded.at(-1);
    const alike = last && /^\d+$/.test(child.name) && last.alike === child.alike && /^\d+$/.test(last.name);
    if (alike) last.count++, last.until = child.name;
    else folded.push(child);
  }
  node.children = folded;
  node.bytes = sumOf(node.tensors, t => t.bytes) + sumOf(folded, c => c.bytes * c.count);
  node.n = node.tensors.length + sumOf(folded, c => c.n * c.count);
  node.alike = JSON.stringify([node.tensors.map(t => [t.op, t.role, t.name, t.shape, t.dtype, t.bytes]),
    folded.map(c => [c.name, c.until, c.count, c.alike])]);
  const only = !node.tensors.length && folded.length === 1 && node.name && !/^\d+$/.test(node.name);
  return only ? {...folded[0], name: node.name + "." + label(folded[0]), until: null} : node;
}

const label = node => node.until ? node.name + DASH + node.until : node.name;

/* ---- a storage's own story ---- */

const shapeText = t => "[" + t.shape.join(", ") + "] " + t.dtype;

function story(run, t) {
  const op = run.ops[t.op], timeline = run.timeline;
  const saver = s => [pathText(ofAll(s.module, t.first, t.last) || "no module"), " ", h("span", {class: "op"}, s.op),
    " keeps it as ", h("code", null, s.name), ", its " + s.role];
  const life = t.life && timeline && [h("div", null, h("dt", null, "Made"),
    h("dd", null, "event " + thousands(t.life.made) + ", " + placeText(timeline, t.life.made)))];
  const after = t.freed_after;
  const freed = after === undefined ? "not recorded" : after ? [`after ${after.op}'s backward in `, pathText(ofAll(after.module, t.first, t.last))]
    : "when the caller lets it go: no op's backward does";
  return h("dl", {class: "story"},
    h("div", null, h("dt", null, "Saved first by"), h("dd", null, saver(t))),
    h("div", null, h("dt", null, "Kept also by"), h("dd", null, t.also.length
      ? h("ul", null, t.also.map(s => h("li", null, saver(s), ", at no cost"))) : "nobody else")),
    op && h("div", null, h("dt", null, "Why"), h("dd", null, h("code", null, op.formula), " keeps " + op.why)),
    life, h("div", null, h("dt", null, "Goes back"), h("dd", null, freed,
      t.life && t.life.freed < Infinity && `, at event ${thousands(t.life.freed)}`)),
    h("div", null, h("dt", null, "Storage"), h("dd", null, exact(t.bytes), " bytes, ", exact(t.rounded),
      " in blocks of 512, " + shapeText(t), t.count > 1 && `; ${t.count} like it, this is number ${t.storage}`)));
}

/* ---- the section ---- */

const COLUMNS = [
  ["module", "", t => t.module], ["op", "", t => t.op], ["keeps", "", t => t.name], ["its", "", t => t.role],
  ["shape", "", t => shapeText(t)], ["for", "", t => t.category], ["", "n", t => t.count],
  ["bytes", "n", t => t.bytes * t.count], ["share", "n", null],
];

class Saved {
  constructor(run) {
    this.run = run;
    this.tensors = savedOf(run);
    this.view = "tree";
    this.sort = {column: 7, down: true};
    this.filter = {module: "", op: "", category: ""};
    this.open = new Set();
    this.body = h("div", {id: "saved"});
    this.found = h("p", {class: "found", role: "status"});
    this.element = h("div", null, this.toolbar(), this.found, this.body);
    this.draw();
  }

  toolbar() {
    const set = name => e => { this.filter[name] = e.target.value; this.draw(); };
    const values = f => [...new Set(this.tensors.map(f))].filter(Boolean).sort();
    const select = (name, title, list, text) => h("label", null, title,
      h("select", {"data-filter": name, onchange: set(name)},
        h("option", {value: ""}, "all"), list.map(value => h("option", {value}, text(value)))));
    const categories = values(t => t.category), look = view => { this.view = view; this.draw(); };
    return h("div", {class: "toolbar filters"},
      choice("View", [["tree", "by module"], ["list", "as a list"]], this.view, look),
      h("label", null, "module",
        h("input", {type: "search", "data-filter": "module", placeholder: "contains\u2026", oninput: set("module")})),
      select("op", "op", values(t => t.op), value => value),
      categories.length > 1 && select("category", "for", categories, value => CATEGORIES[value] || value));
  }

  chosen() {
    const {module, op, category} = this.filter;
    return this.tensors.filter(t =>
      t.module.includes(module) && (!op || t.op === op) && (!category || t.category === category));
  }

  draw() {
    const tensors = this.chosen(), bytes = sumOf(tensors, t => t.bytes), all = this.run.report.saved;
    replace(this.found, tensors.length === this.tensors.length ? "" : [plural(tensors.length, "storage"), " of " +
      thousands(this.tensors.length) + ", ", exact(bytes), " of ", exact(all.bytes), " bytes"]);
    replace(this.body, this.view === "tree" ? this.tree(tensors) : this.list(tensors));
  }

  /* ---- by module ---- */

  tree(tensors) {
    const root = treeOf(tensors), rows = [];
    this.total = sumOf(tensors, t => t.bytes);
    if (this.fresh === undefined) this.fresh = this.openSome(root);
    this.nodeRows(rows, root, 0, 1, "");
    return scroller("Saved storages by module", h("table", {class: "tree"},
      headRow([["module, op and what it keeps", ""], ["storages", "n"], ["bytes", "n"], ["share", "n"], ["", "meter"]]),
      h("tbody", null, rows),
      h("tfoot", null, h("tr", null, h("td", null, "all, each once"), this.sums(tensors), h("td")))));
  }

  sums(tensors) {
    const total = sumOf(tensors, t => t.bytes);
    return [numberCell(thousands(tensors.length)), numberCell(exact(total)), numberCell(percent(total, total))];
  }

  /* At first the largest branch is open, so that it can be seen what a branch holds. */
  openSome(root) {
    let path = "", node = root;
    for (let depth = 0; node && depth < 4; depth++) {
      this.open.add(path);
      node = [...node.children].sort((a, b) => b.bytes * b.count - a.bytes * a.count)[0];
      if (node) path += "/" + label(node);
    }
    return true;
  }

  nodeRows(rows, node, depth, times, path) {
    const parts = [...node.children.map(child => ({child, bytes: child.bytes * child.count})),
      ...node.tensors.map(t => ({t, bytes: t.bytes}))].sort((a, b) => b.bytes - a.bytes);
    for (const {child, t} of parts) {
      if (child) this.moduleRow(rows, child, depth, times * child.count, path + "/" + label(child));
      else this.tensorRow(rows, {...t, count: times}, depth, path + "/" + t.storage);
    }
  }

  moduleRow(rows, node, depth, times, path) {
    const open = this.open.has(path);
    rows.push(this.row("module", depth, path, [h("span", {class: "path"}, label(node)),
      node.count > 1 && h("span", {class: "times"}, ` ${node.count} alike`)], node.n * times, node.bytes * times));
    if (open) this.nodeRows(rows, node, depth + 1, times, path);
  }

  tensorRow(rows, t, depth, path) {
    const open = this.open.has(path);
    const text = [h("span", {class: "op"}, t.op), " keeps ", h("span", null, h("code", null, t.name), ","),
      h("span", {class: "dim"}, `its ${t.role}, ${shapeText(t)}`)];
    rows.push(this.row("leaf", depth, path, text, t.count, t.bytes * t.count));
    if (open) rows.push(this.told(t, 5, depth + 1));
  }

  told(t, columns, depth) {
    return h("tr", {class: "told"}, h("td", {colspan: columns, style: `--depth:${depth}`}, story(this.run, t)));
  }

  /* The button that opens and closes what `path` stands for. */
  fold(path, text) {
    const toggle = () => {
      if (!this.open.delete(path)) this.open.add(path);
      this.draw();
      this.body.querySelector(`[data-path="${CSS.escape(path)}"]`).focus();
    };
    return h("button", {type: "button", class: "fold", "aria-expanded": String(this.open.has(path)), "data-path": path,
      onclick: toggle}, text);
  }

  row(kind, depth, path, text, n, bytes) {
    return h("tr", {class: kind, "data-bytes": bytes},
      h("th", {scope: "row", style: `--depth:${depth}`}, this.fold(path, text)),
      numberCell(thousands(n)), numberCell(exact(bytes)), numberCell(percent(bytes, this.total)),
      h("td", {class: "meter"}, h("span", {style: `width:${share(bytes, this.total)}%`})));
  }

  /* ---- as a list ---- */

  list(tensors) {
    const {column, down} = this.sort, value = COLUMNS[column][2], total = sumOf(tensors, t => t.bytes);
    const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", {numeric: true});
    const rows = foldSaved(tensors).sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
    const heads = COLUMNS.map(([text, kind, f], i) => h("th", {scope: "col", class: kind,
      "aria-sort": i === column ? down ? "descending" : "ascending" : null},
    f && text ? h("button", {type: "button", class: "sort", onclick: () => this.sortBy(i)}, text) : text));
    return scroller("Saved storages", h("table", {class: "list"},
      h("thead", null, h("tr", null, heads)), h("tbody", null, rows.map(t => this.listRows(t, total))),
      h("tfoot", null, h("tr", null, h("td", {colspan: 6}, "all, each once"), this.sums(tensors)))));
  }

  sortBy(column) {
    const number = COLUMNS[column][1] === "n";
    this.sort = {column, down: this.sort.column === column ? !this.sort.down : number};
    this.draw();
    this.body.querySelectorAll("thead th")[column].querySelector("button").focus();
  }

  listRows(t, total) {
    const path = "list/" + t.storage, bytes = t.bytes * t.count;
    const cells = [t.op, h("code", null, t.name), t.role, shapeText(t),
      t.category && [swatch(t.category), CATEGORIES[t.category]],
      t.count > 1 ? thousands(t.count) + " " + TIMES : "", exact(bytes), percent(bytes, total)];
    return [h("tr", {class: "leaf", "data-bytes": bytes, "data-op": t.op, "data-module": t.module},
      h("th", {scope: "row"}, this.fold(path, pathText(ofAll(t.module, t.first, t.last) || "no module"))),
      cells.map((cell, i) => h("td", {class: COLUMNS[i + 1][1]}, cell))),
    this.open.has(path) && this.told(t, 9, 1)];
  }
}

function savedSection(run) {
  const {saved} = run.report;
  const note = [exact(saved.bytes), ` bytes in ${plural(saved.storages, "storage")}, each counted once however many ` +
    "ops keep it; parameters are not among them. Open a row to see who keeps it, why, and when it goes back."];
  return section("Saved for backward", note, new Saved(run).element);
}
