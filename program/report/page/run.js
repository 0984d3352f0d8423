/* run.js: a run as the page needs it: the report's JSON, and its events put together again. */

const KINDS = ["alloc", "free", "recategory", "oom"];

/* Events of the page's own short form (docs/report.md). */
function eventsOfPage(t) {
  const places = t.places.map(([phase, module, op]) =>
    ({phase: t.texts[phase], module: t.texts[module], op: t.texts[op]}));
  return t.events.map(([kind, storage, place, category, allocated, bytes]) => ({
    kind: KINDS[kind], storage, at: places[place], category: t.categories[category],
    allocated, bytes: bytes === undefined ? allocated : bytes,
  }));
}

/* Events as `--timeline --json` writes them. */
const eventsOfJson = timeline => timeline.map(e => ({...e, at: {phase: e.phase, module: e.module, op: e.op}}));

/* Adds to each event what it changes, and what was allocated after it by category: rows of
 * `columns.length` numbers in `sums`, and their total in `total`. Storages know their events. */
function follow(events, before) {
  const storages = new Map(), columns = CATEGORY_NAMES, width = columns.length;
  const sums = new Float64Array(events.length * width), total = new Float64Array(events.length);
  const now = columns.map(name => before[name] || 0), used = new Set(columns.filter(name => before[name]));
  events.forEach((e, i) => {
    const s = storages.get(e.storage);
    const add = (category, bytes) => { now[columns.indexOf(category)] += bytes; used.add(category); };
    if (e.kind === "alloc") {
      storages.set(e.storage, {storage: e.storage, bytes: e.bytes, allocated: e.allocated, made: i, freed: Infinity,
        changes: [[i, e.category]]});
      add(e.category, e.allocated);
    } else if (e.kind === "free" && s) {
      s.freed = i;
      add(s.changes.at(-1)[1], -s.allocated);
    } else if (e.kind === "recategory" && s) {
      add(s.changes.at(-1)[1], -s.allocated);
      add(e.category, s.allocated);
      s.changes.push([i, e.category]);
    }
    sums.set(now, i * width);
    total[i] = now.reduce((a, b) => a + b, 0);
  });
  return {events, storages, sums, total, columns, before, used};
}

/* Runs of events with the same phase, [{name, from, to, step}]; events between phases belong to none. */
function phasesOf(events, steady) {
  const phases = [];
  events.forEach((e, i) => {
    const last = phases.at(-1), begins = steady && i === steady;
    if (!last || last.name !== e.at.phase || begins) {
      phases.push({name: e.at.phase, from: i, to: i + 1, step: steady && i >= steady ? 2 : 1});
    } else {
      last.to = i + 1;
    }
  });
  return phases.filter(phase => phase.name);
}

/* The storages that the tape keeps, by serial: who keeps each. Of a bare --json, those of the first step. */
function keepersOf(report, page) {
  const kept = new Map();
  for (const t of report.saved ? report.saved.tensors : []) kept.set(t.storage, t);
  for (const [storage, module, op, role, name] of page ? page.kept : []) {
    const text = i => page.texts[i];
    kept.set(storage, {storage, module: text(module), op: text(op), role: text(role), name: text(name)});
  }
  return kept;
}

function timelineOf(report, page) {
  const events = page ? eventsOfPage(page) : report.timeline ? eventsOfJson(report.timeline) : [];
  if (!events.length) return null;
  const before = {};
  (page ? page.before : []).forEach((bytes, i) => { before[page.categories[i]] = bytes; });
  const t = follow(events, before);
  t.steady = page ? page.steady : report.steady ? report.steady.event : 0;
  t.nanoseconds = page ? page.nanoseconds : null;
  t.kept = keepersOf(report, page);
  t.phases = phasesOf(events, t.steady);
  t.highest = t.total.reduce((a, b) => Math.max(a, b), 0);
  const instant = report.out_of_memory || report.peak;
  t.peak = instant ? instant.event : 0;
  return t;
}

/* The categories that are used at any instant. */
function usedIn({timeline, report}) {
  const phases = report.steady ? [...report.steady.phases, ...report.phases] : [];
  return timeline ? timeline.used : new Set(CATEGORY_NAMES.filter(name => phases.some(p => p.by_category[name])));
}

/* Sums of an event by category, an object without zeros. */
function sumsAt(t, i) {
  const by = {};
  t.columns.forEach((name, c) => {
    const bytes = t.sums[i * t.columns.length + c];
    if (bytes) by[name] = bytes;
  });
  return by;
}

/* What a storage is for after event i. */
function categoryAt(s, i) {
  let category = s.changes[0][1];
  for (const [event, to] of s.changes) if (event <= i) category = to;
  return category;
}

const aliveAt = (t, i) => [...t.storages.values()].filter(s => s.made <= i && i < s.freed);

/* "second step, backward, gpt.h.3.mlp.act, gelu" */
function placeText(t, i) {
  const e = t.events[i];
  const step = t.steady ? i >= t.steady ? "second step" : "first step" : "";
  return [step, e.at.phase || "between phases", e.at.module, e.at.op].filter(Boolean).join(", ");
}

/* ---- what is in a file ---- */

/* A report of ours, as a page or as JSON; throws with a reason. */
function readRun(text, name) {
  let report = null, more = null;
  if (/^\s*\{/.test(text)) {
    report = JSON.parse(text);
  } else {
    const page = new DOMParser().parseFromString(text, "text/html");
    const part = id => page.getElementById(id) && JSON.parse(page.getElementById(id).textContent);
    report = part("report"), more = part("more");
  }
  if (!report || !/^memtape\./.test(report.schema || "")) throw new Error(name + " is not a report of memtape");
  return makeRun(report, more);
}

function makeRun(report, more) {
  const profile = /^memtape\.profile\//.test(report.schema);
  const {ops = {}, growth = []} = more || {};
  return {report, ops, growth, timeline: profile ? timelineOf(report, more && more.timeline) : null};
}

/* "gpt2-medium", and what it was run with. */
function nameOf(report) {
  const m = report.model;
  return m ? m.preset || m.kind : report.schema;
}
function settingsOf(report) {
  const m = report.model, words = [];
  const add = (value, text) => { if (value) words.push(text || String(value)); };
  if (!m) return [];
  for (const [name, text] of [["batch", "batch"], ["seq", "sequence"], ["layers", "layers"], ["hidden", "width"]]) {
    if (m[name]) words.push(text + " " + thousands(m[name]));
  }
  add(m.dtype), add(m.act), add(m.attention, m.attention + " attention"), add(m.dropout, "dropout " + m.dropout);
  add(m.optimizer && m.optimizer !== "none", m.optimizer), add(m.recipe, "recipe " + m.recipe);
  const s = report.memory_options || {};
  add(s.checkpoint, s.checkpoint && "checkpoint " + s.checkpoint.preset);
  add(s.offload, s.offload && "offload to " + s.offload.to);
  add(s.compress, "compressed"), add(s.amp, "autocast " + s.amp);
  add(s.lora_rank, (s.qlora ? "QLoRA" : "LoRA") + " rank " + s.lora_rank);
  add(s.step_in_backward, "step in backward"), add(s.master_weights, "f32 master weights");
  const p = report.parallel;
  add(p, p && "rank " + p.rank + ": tp " + p.tp + ", pp " + p.pp + ", cp " + p.cp + ", dp " + p.dp + ", ZeRO " + p.zero + (p.f32_shards ? ", f32 shards" : "") +
    ({block: ", gathered by block", ahead: ", gathered ahead"}[p.gather] || ""));
  add(true, "on " + report.device);
  return words;
}
