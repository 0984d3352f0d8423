/* tape.js: the ops of one block that keep something, and what they keep, drawn to scale. */

/* The block: the first of the numbered modules that keep most together ("gpt.h.0"); without numbers, all. */
function blockOf(tensors) {
  const sums = new Map();
  for (const t of tensors) {
    const n = numbered(t.module);
    if (!n) continue;
    const before = n.before.join("."), sum = sums.get(before) || {before, bytes: 0, numbers: new Set()};
    sum.bytes += t.bytes, sum.numbers.add(n.number);
    sums.set(before, sum);
  }
  const [most] = [...sums.values()].sort((a, b) => b.bytes - a.bytes);
  if (!most) return {prefix: "", count: 1};
  const first = Math.min(...most.numbers);
  return {prefix: most.before ? most.before + "." + first : String(first), count: most.numbers.size};
}

const isWithin = (path, prefix) => !prefix || path === prefix || path.startsWith(prefix + ".");

/* [{module, op, kept: [{name, role, tensor, pays}]}], in the order in which they first save something. An op
 * that keeps only what others keep comes after the first of these. */
function tapeOf(tensors, prefix) {
  const ops = new Map();
  const keep = (saver, tensor, pays) => {
    if (!isWithin(saver.module, prefix)) return;
    const key = saver.module + "|" + saver.op;
    if (!ops.has(key)) ops.set(key, {module: saver.module, op: saver.op, kept: []});
    ops.get(key).kept.push({name: saver.name, role: saver.role, tensor, pays});
  };
  tensors.forEach((t, i) => {
    keep(t, t, true);
    const sameOp = other => other && other.module === t.module && other.op === t.op;
    if (sameOp(tensors[i + 1])) return; /* until its last */
    for (const other of tensors.filter(sameOp)) other.also.forEach(saver => keep(saver, other, false));
  });
  return [...ops.values()];
}

function keptBar(k, most) {
  const text = [h("code", null, k.name), `, its ${k.role}, `, k.pays ? exact(k.tensor.bytes) : "there already"];
  const bytes = k.pays ? k.tensor.bytes : 0;
  return h("div", {class: k.pays ? "kept" : "kept shared", "data-bytes": bytes, title: shapeText(k.tensor)},
    h("span", {class: "size", style: `width:${share(k.tensor.bytes, most) * 0.7}%`}), h("span", {class: "text"}, text));
}

function tapeSection(run) {
  const {tensors} = run.report.saved, {prefix, count} = blockOf(tensors), tape = tapeOf(tensors, prefix);
  const own = tensors.filter(t => isWithin(t.module, prefix)), most = Math.max(...own.map(t => t.bytes));
  if (!tape.length || tape.length > 60) return null;
  const note = [exact(sumOf(own, t => t.bytes)),
    " bytes. Bars are to scale; hollow ones are storages that an op before keeps already, at no cost."];
  const within = module => prefix && module !== prefix ? module.slice(prefix.length + 1) : module;
  return section(prefix ? `The tape of one block, ${prefix}${count > 1 ? ` of ${count}` : ""}` : "The tape", note,
    h("ol", {class: "tape", id: "tape"}, tape.map(op => h("li", null,
      h("span", {class: "node"}, h("span", {class: "op"}, op.op), " ", pathText(within(op.module))),
      h("div", null, op.kept.map(k => keptBar(k, most)))))));
}
