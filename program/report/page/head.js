/* head.js: the headline and its equation, and the tables of figures. */

/* A bar of categories in proportion to their bytes, of `whole`. */
function categoryBar(by, whole) {
  const names = CATEGORY_NAMES.filter(name => by[name] > 0);
  return h("div", {class: "stack", role: "img", "aria-label": names.map(name =>
    CATEGORIES[name] + " " + scaled(by[name])).join(", ")},
  names.map(name => h("span", {class: "c-" + name, style: "width:" + share(by[name], whole) + "%"})));
}

/* "peak = parameters + ...": a term for each category that is not 0, or is used at another instant. */
function equation(left, total, by, used) {
  const names = CATEGORY_NAMES.filter(name => by[name] > 0 || used && used.has(name));
  const term = (sign, label, bytes, mark) => h("div", {class: "term"},
    h("span", {class: "sign", "aria-hidden": "true"}, sign),
    h("span", {class: "what"}, mark, label), h("span", {class: "much"}, rounded(bytes)),
    h("span", {class: "bytes"}, exact(bytes)));
  return h("div", {class: "equation", id: "equation"}, term("", left, total, null),
    names.map((name, i) => term(i ? "+" : "=", CATEGORIES[name], by[name], swatch(name))));
}

const facts = list => h("dl", {class: "facts"}, list.filter(Boolean).map(([name, value, note]) =>
  h("div", null, h("dt", null, name), h("dd", null, value, note && h("small", null, note)))));

/* Where something happened: "in backward, by cross_entropy of loss". */
const instantText = ({phase, op, module}) => [phase && "in " + phase,
  op ? "by " + op + (module && " of " + module) : module && "of " + module].filter(Boolean).join(", ");

function title(run) {
  const {report} = run;
  return h("div", {class: "title"}, h("h1", null, nameOf(report)),
    h("p", {class: "settings"}, settingsOf(report).join(DOT)));
}

function refusedHead(run) {
  const oom = run.report.out_of_memory;
  return h("section", {class: "hero"}, title(run),
    h("p", {class: "headline"}, "Out of memory: ", h("strong", {class: "bad"}, rounded(oom.requested)),
      " of " + CATEGORIES[oom.category] + " refused, with ", rounded(oom.allocated), " allocated"),
    h("p", {class: "sub"}, exact(oom.requested), " bytes, ", instantText(oom), ". ",
      oom.needed && ["A device that is large enough needs ", exact(oom.needed.peak), " bytes; ",
        exact(oom.needed.reserved), " reserved."]),
    categoryBar(oom.by_category, oom.allocated), equation("allocated", oom.allocated, oom.by_category, usedIn(run)));
}

/* The head of a report that knows what is saved but no step's peak (memtape.torch). */
function savedHead(run) {
  const {saved, params} = run.report;
  return h("section", {class: "hero"}, title(run),
    h("p", {class: "headline"}, "Saved for backward: ", h("strong", null, rounded(saved.bytes))),
    h("p", {class: "sub"}, exact(saved.bytes), " bytes in " + plural(saved.storages, "storage") +
      "; memory over the step was not measured."),
    facts([["Parameters", counted(params.count), scaled(params.bytes)]]));
}

function head(run) {
  const {report} = run;
  if (report.out_of_memory) return refusedHead(run);
  if (!report.steady) return savedHead(run);
  const {steady, peak} = report;
  return h("section", {class: "hero"}, title(run),
    h("p", {class: "headline"}, "A training step takes ", h("strong", null, rounded(steady.peak))),
    h("p", {class: "sub"}, exact(steady.peak), " bytes at its peak", peak && ", " + instantText(peak),
      ". Every later step takes the same."),
    categoryBar(steady.by_category, steady.peak), equation("peak", steady.peak, steady.by_category, usedIn(run)));
}

/* What stands below the curve of a step. */
function stepFacts({steady, saved, params, flops, capacity}) {
  return steady && facts([["Saved for backward", rounded(saved.bytes), plural(saved.storages, "storage")],
    ["Reserved", rounded(steady.reserved), "the allocator's segments"],
    ["Parameters", counted(params.count), scaled(params.bytes)],
    flops && ["Work of a step", work(workOf({flops})),
      flops.recompute ? work(flops.recompute) + " of it again" : "nothing computed twice"],
    capacity && ["Capacity", rounded(capacity)]]);
}

/* ---- tables ---- */

/* signs and bytes; the last line is what they sum to. */
function sumTable(label, rows, foot) {
  const cells = ([sign, bytes, text]) => [sign, exact(bytes), text];
  return table(label, [["", "sign"], ["bytes", "n"], ["", "wide"]], rows.map(cells), foot.map(cells));
}

function growthTable({growth, report: {growth: g}}) {
  if (!g) return null;
  const rows = [...growth.map(([key, sign, words], i) => [i ? sign.replace("-", MINUS) : "", g[key], words]),
    ["+", g.residual, "that nobody accounts for"]];
  return section("What forward left behind", "The allocator's growth over forward is what the tape keeps, and these:",
    sumTable("Growth over forward", rows.filter(([, bytes], i) => !i || bytes),
      [["=", g.measured, "measured: allocated after forward less before"]]));
}

function formulaTable({formula: f, saved}) {
  if (!f) return null;
  const rows = [...f.terms.map(t => [t.text, t.bytes, t.what]),
    ...f.residual.map(t => ["beside it", t.bytes, t.term])];
  return section("The closed formula", [h("code", null, f.text), ", for 2-byte floats, and what it leaves out"],
    table("Closed formula", [["term", ""], ["bytes", "n"], ["", "wide"]],
      rows.map(([term, bytes, what]) => [h("code", null, term), exact(bytes), what]),
      [["=", exact(f.bytes + f.residual.reduce((sum, r) => sum + r.bytes, 0)), "expected"],
        ["", exact(saved.bytes), "measured: saved for backward"],
        ["", exact(f.unexplained), "difference"]]));
}

function phaseTable(label, phases) {
  const used = CATEGORY_NAMES.filter(name => phases.some(p => p.by_category[name] || p.at_peak[name]));
  const rows = used.map(name => [[swatch(name), CATEGORIES[name]], ...phases.map(p => exact(p.by_category[name]))]);
  const timed = phases.some(p => p.seconds !== null);
  const row = (name, key) => [name, ...phases.map(p => exact(p[key]))];
  const foot = [...["requested", "allocated", "active"].filter(key => key in phases[0]).map(key => row(key, key)),
    row("peak within", "peak"), row("reserved", "reserved"),
    ...timed ? [["time", ...phases.map(p => p.seconds === null ? "" : duration(p.seconds))]] : []];
  return table(label, [["at the end of", ""], ...phases.map(p => [p.name, "n"])], rows, foot);
}

/* Where a step requests on several streams. */
function streamTable({steady}) {
  if (!steady || !steady.streams) return null;
  const row = s => [s.name, exact(s.reserved), exact(s.allocated), exact(s.free)];
  return section("Reserved by stream", "When most was reserved in the steady step. A stream's free bytes serve no other one.",
    table("Reserved by stream", [["stream", ""], ["reserved", "n"], ["allocated", "n"], ["free", "n"]],
      steady.streams.map(row), [["together", exact(steady.reserved), "", ""]]));
}

function phaseTables({steady, phases, inference}) {
  if (!steady) return null;
  return section("Phase by phase", "Bytes of whole blocks, by category at each phase's end.",
    h("h3", null, "A step in the steady state"), phaseTable("Steady step", steady.phases),
    h("h3", null, "The first step, which makes the optimizer's state"), phaseTable("First step", phases),
    inference && [h("h3", null, "A forward pass without a tape"), phaseTable("Inference", inference.phases)]);
}
