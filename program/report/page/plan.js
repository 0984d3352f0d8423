/* plan.js: the page of plan: each closed formula with the measurement beside it. Numbers of operations
 * are rounded: they may be larger than a script's numbers are exact. */

const amountOf = unit => unit === "FLOP" ? n => h("data", {value: n}, counted(n)) : exact;

/* value + rows = measured, of one formula. */
function formulaRows(f) {
  const amount = amountOf(f.unit);
  const rows = [[h("code", null, f.text), amount(f.value), f.source], ...f.rows.map(r => ["", amount(r.amount), r.text])];
  return [h("h3", null, f.name), table(f.name, [["formula", "term-name"], [f.unit, "n"], ["", "wide"]], rows,
    ["expected", "measured", "unexplained"].map(key => ["", amount(f[key]), key]))];
}

function regimeTable(regimes) {
  const most = Math.max(...regimes.map(r => r.bytes));
  return section("Bytes for each parameter", "Ways to train, or to run.", table("Bytes for each parameter",
    [["", ""], ["parameter", "n"], ["gradient", "n"], ["optimizer", "n"], ["all, in bytes", "n"], ["", "meter"],
      ["source", "minor"]],
    regimes.map(r => [[r.name, r.options && h("code", {class: "dim"}, " " + r.options)],
      String(r.parameter), String(r.gradient), String(r.optimizer), exact(r.bytes),
      h("span", {style: `width:${share(r.bytes, most)}%`}), r.source])));
}

/* ---- work ---- */

function workSection({flops, components, training, time}) {
  return section("Work of a step", "Operations, a multiply-add being 2.", facts([
    ["Forward", work(flops.forward)], ["Backward", work(flops.backward)],
    ["Computed again", work(flops.recompute)],
    training && ["All of training", work(training.measured_flops), counted(training.tokens) + " tokens"],
    time && ["Time", counted(time.measured_s / 86400) + " days",
      `on ${plural(time.devices, "device")} at ${100 * time.utilisation} % of ${work(time.flops_rate)}/s`]]),
  components.length > 0 && table("Products of a forward pass",
    [["product", ""], ["formula", ""], ["times", "n"], ["each", "n"], ["all", "n"]],
    components.map(c => [c.name, h("code", null, c.text), thousands(c.times), counted(c.each), counted(c.flops)])));
}

/* ---- what fits ---- */

const fitFact = (name, fit, note) =>
  [name, thousands(fit.largest), [note, ", peak ", rounded(fit.peak), ", reserved ", rounded(fit.reserved)]];

function fitsSection({fits, model}) {
  return fits && section("What fits", "Found by running larger and larger steps until one is refused memory.", facts([
    ["Capacity", rounded(fits.capacity), [exact(fits.capacity), " bytes"]],
    fitFact("Largest batch", fits.batch, "of sequences of " + thousands(model.seq)),
    fitFact("Longest sequence", fits.seq, thousands(model.batch) + " of them"),
    ["The formulas would promise", thousands(fits.batch_by_formula),
      "as the batch; the measured activations " + thousands(fits.batch_by_sum)]]));
}

function partText(part) {
  const layers = part.layers > 1 ? `${part.layers} layers from ${part.from}` : part.from;
  const what = part.group > 1 ? `groups of ${part.group} are one checkpoint` : part.group ? "each is a checkpoint"
    : part.core ? "the core of attention is a checkpoint" : "nothing is computed again";
  return `${layers}: ${what}${part.keeps ? ", which keeps " + part.keeps : ""}`;
}

function budgetSection({budget: b}) {
  if (!b) return null;
  const row = (name, p) =>
    [name, exact(p.peak), p.reserved === undefined ? "" : exact(p.reserved), counted(p.recompute_flops)];
  return section("Within a budget", ["Of ", exact(b.budget), " bytes: the checkpoints that compute least again."],
    h("ul", null, b.parts.map(part => h("li", null, partText(part)))),
    table("Peaks and what they cost", [["", ""], ["peak", "n"], ["reserved", "n"], ["FLOP again", "n"]],
      [row("this budget", b), ...b.front.map((p, i) => row("budget " + (i + 1), p)),
        ...Object.entries(b.presets).map(([name, p]) => row("--checkpoint " + name, p))]));
}

function planPage(report) {
  const {step, kv_share: cache} = report;
  put(page, h("section", {class: "hero"}, title({report: {...report, device: "meta"}}),
    h("p", {class: "headline"}, "A training step takes ", h("strong", null, rounded(step.peak))),
    h("p", {class: "sub"}, exact(step.peak), " bytes at its peak, in " + step.phase + "; ", exact(step.reserved),
      " reserved.",
      cache !== null && ` The KV cache takes ${(100 * cache).toFixed(1)} % of the parameters' bytes.`),
    categoryBar(step.at_peak, step.peak), equation("peak", step.peak, step.at_peak)));
  put(page, fitsSection(report), budgetSection(report), section("Formulas beside measurements",
    "Each closed formula, what this model has beside it, and what the device without data came to.",
    report.formulas.map(formulaRows)), regimeTable(report.regimes), workSection(report));
}
