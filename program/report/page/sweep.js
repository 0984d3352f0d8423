/* sweep.js: the page of sweep: rows of figures beside bars on one scale. */

const pageTitle = note => h("div", {class: "title"}, h("h1", null, document.title), h("p", {class: "settings"}, note));

/* A bar of categories whose length is `bytes` of `most`. */
const barOf = (by, bytes, most) => h("div", {class: "track"},
  h("div", {style: `width:${share(bytes, most)}%`}, categoryBar(by, bytes)));

/* How far the gradients are from the first row's. */
function gradientsText(g) {
  if (!g) return "";
  if (!g.compared || g.relative === null) return "not comparable";
  return g.same_bits ? "same bits" : g.relative.toExponential(1);
}

class Sweep {
  constructor(rows) {
    this.rows = rows;
    this.ran = rows.filter(row => !row.out_of_memory);
    this.most = this.ran.reduce((most, row) => Math.max(most, row.steady.peak), 0);
    this.base = this.ran[0];
    this.order = "given";
    this.body = h("div", {id: "sweep"});
    this.element = h("div", null, this.toolbar(), this.body);
    this.draw();
  }

  toolbar() {
    return h("div", {class: "toolbar filters"},
      choice("Order", [["given", "as given"], ["peak", "least peak"], ["saved", "least saved"]], this.order,
        order => { this.order = order; this.draw(); }),
      this.ran.length > 1 && h("label", null, "compared with", h("select", {id: "base", onchange: e => {
        this.base = this.ran[Number(e.target.value)];
        this.draw();
      }}, this.ran.map((row, i) => h("option", {value: i}, row.row || "the options alone")))));
  }

  sorted() {
    const value = {given: () => 0, peak: row => row.peak, saved: row => row.saved}[this.order];
    return [...this.ran.sort((a, b) => this.rows.indexOf(a) - this.rows.indexOf(b))].sort((a, b) => value(a) - value(b))
      .concat(this.rows.filter(row => row.out_of_memory));
  }

  draw() {
    const timed = this.ran.some(row => row.step_seconds !== null), compared = this.ran.some(row => row.gradients);
    const again = this.ran.some(row => row.recompute_flops);
    const columns = [["row", ""], ["peak of a step, by category", "bars"], ["peak", "n"], ["difference", "n minor"],
      ["saved for backward", "n minor"], ["reserved", "n minor"], ...timed ? [["a step", "n minor"]] : [],
      ...compared ? [["gradients differ by", "n minor"]] : [], ...again ? [["FLOP again", "n minor"]] : []];
    const used = CATEGORY_NAMES.filter(name => this.ran.some(row => row.steady.by_category[name]));
    replace(this.body, h("p", {class: "legend"}, used.map(name => h("span", null, swatch(name), CATEGORIES[name]))),
      table("Rows of the sweep", columns, this.sorted().map(row => {
        const name = row.row || "the options alone";
        if (row.out_of_memory) {
          return [name, h("span", {class: "bad"}, "out of memory"), ...columns.slice(2).map(() => "")];
        }
        return [name, barOf(row.steady.by_category, row.steady.peak, this.most), exact(row.steady.peak),
          difference(this.base.steady.peak, row.steady.peak), exact(row.saved), exact(row.reserved),
          ...timed ? [row.step_seconds === null ? "" : duration(row.step_seconds)] : [],
          ...compared ? [gradientsText(row.gradients)] : [], ...again ? [counted(row.recompute_flops)] : []];
      })));
  }
}

function sweepPage(report) {
  const view = new Sweep(report.rows), peaks = view.ran.map(row => row.steady.peak);
  const least = view.ran.find(row => row.steady.peak === Math.min(...peaks));
  put(page, h("section", {class: "hero"}, pageTitle(plural(report.rows.length, "set-up") + ", a training step of each"),
    least ? [h("p", {class: "headline"}, "A step takes ", h("strong", null, rounded(least.steady.peak)),
      view.most > least.steady.peak && [" to ", h("strong", null, rounded(view.most))]),
    h("p", {class: "sub"}, "Least by ", h("b", null, least.row || "the options alone"), ": ", exact(least.steady.peak),
      " bytes at its peak.")] : h("p", {class: "headline bad"}, "Every set-up ran out of memory")));
  put(page, section("Side by side",
    "Bytes are those of a step in the steady state, whole blocks at its peak, on one scale.", view.element));
}
