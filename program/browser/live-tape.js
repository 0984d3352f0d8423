/* live-tape.js: expressions, side by side: the tape as it grows and goes, and memory beside it, step by step. Everything
 * shown is of `memtape explain --expr ... --json -`. */

const MLP_SHAPES = "x=512x256,w1=256x1024,w2=1024x256", HEAD_SHAPES = "q=256x64,k=256x64,v=256x64";
const EXAMPLES = [
  ["ReLU", "h = relu(x @ w1)\ny = h @ w2", MLP_SHAPES],
  ["ReLU in place", "h = relu_inplace(x @ w1)\ny = h @ w2", MLP_SHAPES],
  ["GELU", "h = gelu(x @ w1)\ny = h @ w2", MLP_SHAPES],
  ["GELU in a checkpoint", "h = checkpoint(gelu(x @ w1))\ny = h @ w2", MLP_SHAPES],
  ["All of it in a checkpoint", "y = checkpoint(gelu(x @ w1) @ w2)", MLP_SHAPES],
  ["Attention, op by op", "s = q @ permute(k, 1, 0) * 0.125\np = softmax(s)\ny = p @ v", HEAD_SHAPES],
  ["Attention in a checkpoint", "y = checkpoint(softmax(q @ permute(k, 1, 0) * 0.125) @ v)", HEAD_SHAPES],
  ["Layer norm by hand", "d = x - mean(x, 1, 1)\ns = mean(d*d, 1, 1)\ny = d / sqrt(s + 1e-5) * w", "x=256x512,w=512"],
  ["Layer norm, fused", "y = layer_norm(x, w)", "x=256x512,w=512"],
];

/* A report of explain as the view needs it. Moments are instants between ops: the tensors are there, after each
 * step, and all is over. */
function momentsOf(report) {
  const t = follow(eventsOfJson(report.timeline), {}), first = t.events.findIndex(e => e.at.phase);
  const moments = [{phase: "", text: "Before the first op: only the inputs and weights", events: first < 0 ? t.events.length : first}];
  moments.push(...report.steps, {phase: "", text: "The step is over", events: t.events.length});
  let on = 0, off = report.ops.length + 1;
  return {t, moments: moments.map((moment, i) => {
    if (moment.phase === "forward" && moment.op) on = moment.op;
    if (moment.phase === "backward") off = moment.op;
    if (i + 1 === moments.length) off = 1;
    return {...moment, on, off, event: moment.events - 1};
  })};
}

const totalAt = (t, event) => event < 0 ? 0 : t.total[event];

class Side {
  constructor(name, changed) {
    this.name = name, this.changed = changed, this.report = null;
    const id = "tape-" + name;
    this.text = h("textarea", {id, rows: 4, spellcheck: "false", autocapitalize: "off", "aria-describedby": id + "-bad"});
    this.shapes = textInput({id: id + "-shapes"});
    this.bad = h("pre", {class: "bad", id: id + "-bad", role: "alert"});
    this.examples = select([["", "An example"], ...EXAMPLES.map(([title], i) => [String(i), title])]);
    fill(this.examples, {"aria-label": `An example for ${name}`});
    this.leaves = h("div", {class: "leaves"}), this.command = h("code");
    this.chart = h("div", {class: "chart-of-tape"}), this.answer = h("div", {class: "answer-of-tape"});
    this.element = h("section", {class: "side-tape", "aria-label": name}, h("div", {class: "field"},
      h("label", {for: id}, `Expression ${name}`), this.text, this.bad, h("label", {for: id + "-shapes"}, "Shapes"), this.shapes, this.examples),
    this.leaves, h("div", {class: "command"}, this.command));
    for (const input of [this.text, this.shapes]) input.addEventListener("input", () => this.changed());
    this.examples.addEventListener("change", () => this.take(...EXAMPLES[this.examples.value].slice(1)));
  }

  take(text, shapes) {
    this.text.value = text, this.shapes.value = shapes, this.frozen = "", this.examples.value = "";
    this.changed();
  }

  get words() {
    return ["explain", "--expr", this.text.value, "--shapes", this.shapes.value, ...(this.frozen ? ["--no-grad", this.frozen] : []),
      "--device", "meta"];
  }

  async run() {
    const words = this.words;
    replace(this.command, unbroken(commandOf(words)));
    const result = await tool.front.run([...words, "--json", "-"]);
    if (words.join("\n") !== this.words.join("\n")) return;
    this.refuse(result.err);
    this.element.dataset.words = words.join("\n");
    if (!result.out) return;
    this.report = JSON.parse(result.out);
    Object.assign(this, momentsOf(this.report));
    this.showLeaves();
  }

  refuse(text) {
    const reason = text.replace(/^memtape \w+: /, "");
    replace(this.bad, reason);
    for (const [input, option] of [[this.shapes, /^--(shapes|no-grad)/], [this.text, /^--expr/]]) {
      if (reason && option.test(reason)) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
    for (const part of [this.chart, this.answer]) part.classList.toggle("refused-tape", reason !== "");
  }

  get hidden() { return this.element.hidden; }
  set hidden(yes) { this.element.hidden = this.chart.hidden = this.answer.hidden = yes; }

  showLeaves() {
    replace(this.leaves, h("span", null, "Want a gradient:"), this.report.leaves.filter(leaf => !leaf.indices).map(leaf =>
      h("label", {class: "check"}, h("input", {type: "checkbox", checked: leaf.gradient, onchange: e => this.freeze(leaf.name, !e.target.checked)}),
        leaf.name, leaf.weight && " (weight)")));
  }

  freeze(name, yes) {
    const names = (this.frozen || "").split(",").filter(other => other && other !== name);
    this.frozen = [...names, ...(yes ? [name] : [])].join(",");
    this.changed();
  }

  get peak() { return this.t ? this.t.highest || Math.max(0, ...this.t.total) : 0; }
  get kept() { return sumOf(this.report.ops.flatMap(op => op.keeps).filter(k => k.pays), k => k.bytes); }

  /* most: bytes as wide and as high as there is room; step: the moment, or this side's last. */
  show(step, most, choose) {
    const i = Math.min(step, this.moments.length - 1), moment = this.moments[i];
    replace(this.chart, h("p", {class: "keeps"}, this.name, " keeps ", h("strong", null, exact(this.kept)), " bytes for backward; the peak is ",
      exact(this.peak), "."), this.bars(i, most.peak, choose),
    h("p", {class: "instant"}, h("b", null, momentTitle(moment)), DOT, exact(totalAt(this.t, moment.event)), " bytes allocated"));
    replace(this.answer, h("p", {class: "name-of-tape"}, `${this.name}: `, h("code", null, this.text.value.replaceAll("\n", "; "))),
      this.tape(moment, most.kept), this.alive(moment));
  }

  /* Memory after each step, stacked by category; a line where it was higher within the step. */
  bars(chosen, most, choose) {
    let before = 0;
    const bars = this.moments.map((moment, i) => {
      const by = moment.event < 0 ? {} : sumsAt(this.t, moment.event);
      const within = this.t.total.slice(before, moment.events).reduce((a, b) => Math.max(a, b), 0);
      before = moment.events;
      return h("div", {class: "bar-of-step", "data-chosen": i === chosen, onclick: () => choose(i), title: momentTitle(moment)},
        h("span", {class: "within", style: `bottom:${share(within, most)}%`}),
        CATEGORY_NAMES.filter(name => by[name]).map(name => h("span", {class: "c-" + name, style: `height:${share(by[name], most)}%`})));
    });
    const backward = this.moments.findIndex(moment => /backward|recompute/.test(moment.phase)), n = this.moments.length;
    const phases = backward < 0 ? [["forward", n]] : [["forward", backward], ["backward", n - backward]];
    return h("div", {class: "steps-of-tape", "aria-hidden": "true"}, h("div", {class: "bars-of-steps"}, bars),
      h("div", {class: "phases-of-steps"}, phases.map(([name, count]) => h("span", {style: `flex:${count}`}, name))),
      h("p", {class: "legend"}, CATEGORY_NAMES.filter(name => this.t.used.has(name)).map(name => h("span", null, swatch(name), CATEGORIES[name]))));
  }

  /* The ops that are on the tape at this moment; from below the line on, backward is through them. */
  tape(moment, most) {
    const ops = this.report.ops.slice(0, moment.on);
    if (!ops.length) return h("p", {class: "note"}, this.report.ops.length ? "The tape is empty." : "Nothing is recorded: no op has an operand that wants a gradient.");
    const payer = k => this.report.ops.findIndex(op => op.keeps.some(other => other.pays && other.storage === k.storage)) + 1;
    return h("ol", {class: "tape"}, ops.map((op, i) => h("li", {class: i + 1 >= moment.off ? "gone" : null, "data-op": i + 1},
      h("span", {class: "node"}, `#${i + 1} `, h("span", {class: "op"}, op.op), " ", h("code", null, op.text)),
      h("div", null, op.keeps.map(k => keepOf(k, payer(k), most)), !op.keeps.length && h("span", {class: "dim"}, "keeps nothing"),
        h("p", {class: "why"}, op.why)))));
  }

  /* A storage in words: a leaf, what it is the gradient of, or the op that made it. */
  nameOf(s, category, {events}) {
    const leaf = this.report.leaves.find(other => other.storage === s.storage), {phase, module} = this.t.events[s.made].at;
    const gradients = this.report.gradients.filter(g => g.storage === s.storage), code = text => h("code", null, text);
    const gradient = gradients.findLast(g => g.events <= events) || gradients[0];
    if (leaf) return code(leaf.name);
    if (gradient) return ["gradient of ", code(gradient.of)];
    if (phase !== "backward") return code(module);
    return category === "activation" ? [code(module), ", computed again"] : ["working memory, backward through ", code(module)];
  }

  /* Storages, each once. */
  alive(moment) {
    const {leaves, ops} = this.report;
    const onTape = ops.slice(0, Math.min(moment.on, moment.off - 1));
    const rows = aliveAt(this.t, moment.event).map(s => {
      const category = categoryAt(s, moment.event);
      const keepers = onTape.flatMap((op, i) => op.keeps.filter(k => k.storage === s.storage).map(k => `#${i + 1} ${k.name}`));
      return [[swatch(category), this.nameOf(s, category, moment)], CATEGORIES[category], keepers.join(", "), exact(s.allocated)];
    });
    return table("Storages at this moment", [["storage", ""], ["for", "minor"], ["kept by", ""], ["allocated", "n"]], rows,
      [["all", "", "", exact(totalAt(this.t, moment.event))]]);
  }
}

const TITLES = {forward: "Forward: ", recompute: "Computed again: ", backward: "Backward through "};
const momentTitle = ({phase, text}) => (TITLES[phase] || "") + text;

function keepOf(k, payer, most) {
  const what = k.parameter ? "a parameter, in memory anyway" : k.pays ? exact(k.bytes) : `as #${payer}, there already`;
  return h("div", {class: k.pays ? "kept" : "kept shared", "data-bytes": k.pays ? k.bytes : 0, title: shapeText(k)},
    !k.parameter && h("span", {class: "size", style: `width:${share(k.bytes, most) * 0.5}%`}),
    h("span", {class: "text"}, h("code", null, k.name), `, its ${k.role}, `, what));
}

/* ---- the view ---- */

const tapes = {sides: null, step: 0, pause: 0};

function stepper() {
  const button = (text, by) => h("button", {type: "button", onclick: () => chooseStep(by(tapes.step))}, text);
  tapes.slider = h("input", {type: "range", id: "step", min: 0, value: 0, "aria-label": "Step"});
  tapes.slider.addEventListener("input", () => chooseStep(Number(tapes.slider.value)));
  tapes.instant = h("p", {id: "moment", class: "instant", "aria-live": "polite"});
  return h("div", {class: "stepper"}, h("span", {class: "choice"}, button("First", () => 0), button("Previous", i => i - 1),
    button("Next", i => i + 1), button("Last", () => Infinity)), tapes.slider, tapes.instant);
}

/* The sides that are shown, and have something to show. */
const sidesShown = () => tapes.sides.filter(side => !side.hidden && side.moments);

function chooseStep(step) {
  const sides = sidesShown(), last = Math.max(0, ...sides.map(side => side.moments.length - 1));
  tapes.step = Math.max(0, Math.min(last, step));
  const most = {peak: Math.max(1, ...sides.map(side => side.peak)),
    kept: Math.max(1, ...sides.flatMap(side => side.report.ops.flatMap(op => op.keeps.map(k => k.parameter ? 0 : k.bytes))))};
  for (const side of sides) side.show(tapes.step, most, chooseStep);
  fill(tapes.slider, {max: last}, []), tapes.slider.value = tapes.step;
  const text = `Step ${tapes.step} of ${last}` + (sides[0] ? ": " + momentTitle(sides[0].moments[Math.min(tapes.step, sides[0].moments.length - 1)]) : "");
  tapes.slider.setAttribute("aria-valuetext", text);
  replace(tapes.instant, text);
  keepTapes();
}

function keepTapes() {
  const [a, b] = tapes.sides;
  keepInLink("tape", {expr: a.text.value, shapes: a.shapes.value, frozen: a.frozen || "", step: tapes.step ? String(tapes.step) : "",
    ...(b.hidden ? {} : {expr2: b.text.value, shapes2: b.shapes.value, frozen2: b.frozen || ""})});
}

async function runTapes() {
  await Promise.all(tapes.sides.filter(side => !side.hidden).map(side => side.run()));
  chooseStep(tapes.step);
}

function changeTapes() {
  clearTimeout(tapes.pause);
  tapes.pause = setTimeout(runTapes, 120);
}

function makeTapes() {
  tapes.sides = [new Side("A", changeTapes), new Side("B", changeTapes)];
  tapes.two = h("input", {type: "checkbox", id: "tape-two", onchange: e => {
    tapes.sides[1].hidden = !e.target.checked;
    runTapes();
  }});
  put(element("view-tape"), h("h2", null, "The tape, live"),
    h("p", {class: "note"}, "Write ops, a line each: y = gelu(x @ w). ", h("code", null, "checkpoint(...)"),
      " computes again, ops that end in ", h("code", null, "_inplace"), " change their input, and names that begin with w are weights."),
    h("label", {class: "check"}, tapes.two, "two, to compare"), h("div", {class: "tapes"}, tapes.sides.map(side => side.element)), stepper(),
    ["chart", "answer"].map(part => h("div", {class: "tapes"}, tapes.sides.map(side => side[part]))));
}

function openTape() {
  if (!tapes.sides) makeTapes();
  const link = linkNow(), one = link.get("expr") !== null && link.get("expr2") === null, [a, b] = tapes.sides;
  const take = (side, number, [, text, shapes]) => {
    side.text.value = link.get("expr" + number) || text, side.shapes.value = link.get("shapes" + number) || shapes;
    side.frozen = link.get("frozen" + number) || "";
  };
  take(a, "", EXAMPLES[0]), take(b, "2", EXAMPLES[2]);
  tapes.two.checked = !one, b.hidden = one;
  tapes.step = Number(link.get("step")) || 0;
  runTapes();
}
