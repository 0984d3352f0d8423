/* compare.js: a second run beside the first. */

/* On a phone in few digits, beside both figures in full. */
function difference(a, b) {
  const kind = b === a ? "same" : b < a ? "less" : "more";
  return [h("data", {value: b - a, class: kind + " minor"}, b === a ? "0" : signed(b - a)),
    h("span", {class: kind + " phone"}, b === a ? "0" : (b > a ? "+" : "") + scaled(b - a))];
}

function compareRow(what, a, b, told) {
  const apart = told ? (b > a ? "+" : b < a ? MINUS : "") + told(Math.abs(b - a)) : difference(a, b);
  const part = a ? (b > a ? "+" : "") + percent(b - a, a).replace("-", MINUS) : "";
  return [what, (told || exact)(a), (told || exact)(b), apart, part];
}

const workOf = ({flops}) => flops.forward + flops.backward + flops.recompute;

/* What both keep, by the modules' and the ops' names, most different first. */
function savedDifferences(a, b) {
  const rows = new Map();
  [a, b].forEach((run, side) => {
    for (const t of run.report.saved.tensors) {
      const module = family(t.module).replace("#", "*"), key = [module, t.op, t.name].join("|");
      if (!rows.has(key)) rows.set(key, {module, op: t.op, name: t.name, bytes: [0, 0]});
      rows.get(key).bytes[side] += t.bytes;
    }
  });
  return [...rows.values()].filter(r => r.bytes[0] !== r.bytes[1])
    .sort((r, s) => Math.abs(s.bytes[1] - s.bytes[0]) - Math.abs(r.bytes[1] - r.bytes[0]));
}

function settingsApart(a, b) {
  const one = settingsOf(a), other = settingsOf(b);
  return [one.filter(word => !other.includes(word)), other.filter(word => !one.includes(word))];
}

const whole = run => run.report.steady && run.report.saved;

/* Two profiles side by side. The runs' curves have one scale. */
function compareSection(a, b, close) {
  const [apart, otherwise] = settingsApart(a.report, b.report);
  const names = [[nameOf(a.report), ...apart].join(" "), [nameOf(b.report), ...otherwise].join(" ")];
  const columns = [["", ""], [names[0], "n"], [names[1], "n"], ["difference", "n"], ["", "n minor"]];
  const parts = [h("p", null, h("button", {type: "button", onclick: close}, "Close the comparison"))];
  if (!whole(a) || !whole(b)) {
    parts.push(h("p", {class: "bad"}, "One of the two has no whole step: it ran out of memory, or was not measured."));
  } else {
    const s = a.report.steady, o = b.report.steady;
    const used = CATEGORY_NAMES.filter(name => s.by_category[name] || o.by_category[name]);
    parts.push(table("Two runs", columns, [compareRow(h("b", null, "peak of a step"), s.peak, o.peak),
      ...used.map(name => compareRow([swatch(name), CATEGORIES[name]], s.by_category[name], o.by_category[name])),
      compareRow("reserved", s.reserved, o.reserved),
      compareRow("saved for backward", a.report.saved.bytes, b.report.saved.bytes),
      compareRow("elements of parameters", a.report.params.count, b.report.params.count),
      ...a.report.flops && b.report.flops
        ? [compareRow("FLOP of a step", workOf(a.report), workOf(b.report), counted)] : []]));
    const rows = savedDifferences(a, b);
    parts.push(h("h3", null, "Where what is kept differs"), rows.length
      ? table("Differences in what is kept", [["module", ""], ["op", "minor"], ["keeps", "minor"], ...columns.slice(1, 4)],
        rows.map(({module, op, name, bytes: [x, y]}) =>
          [[pathText(module), h("span", {class: "phone op"}, " ", op, " ", name)], op, h("code", null, name), exact(x), exact(y), difference(x, y)]))
      : h("p", null, "Nowhere: both keep the same."));
  }
  if (a.timeline && b.timeline) {
    const most = Math.max(a.timeline.highest, b.timeline.highest);
    parts.push(h("h3", null, "Both on one scale"), [a, b].map((run, i) => {
      const alive = new Alive(run, "");
      const chart = new Chart(run, {most, label: names[i], chosen: event => alive.show(event)});
      return h("figure", {class: "side"}, h("figcaption", null, names[i]), chart.element, alive.element);
    }));
  }
  const element = section("Beside " + names[1], null, parts);
  element.id = "comparison";
  return element;
}
