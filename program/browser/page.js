/* page.js: the set-up that is chosen, as the program's words; what the program answers. No figure is computed here:
 * each is one of a report, and two of them are compared to say whether a card has room. */

const page = element("page"), actions = element("actions");

/* ---- what the program says of itself ---- */

const DEFAULTS = {model: "llama-3.1-8b", gpus: "8", gpu: "h100"};

/* The verb's option of that name, if the form sets it; until help is there each is taken for one. */
function optionOf(verb, name) {
  if (name in DEFAULTS || name === "device") return undefined;
  return tool.options ? tool.options.find(row => row.name === name && row.verbs.includes(verb)) : {};
}

/* ---- the set-up ---- */

const FIRST = ["recipe", "optimizer", "master-weights", "checkpoint", "offload", "dtype", "amp", "lora-rank", "qlora", "tp", "pp",
  "dp", "zero"];
const IN_GROUPS = ["batch", "recipe", "optimizer", "tp", "device"]; // an option of each group that is shown
const HIDDEN = ["batch", "seq", "device", "gpu", "seed", "threads", "scratch"];
const CONFIG = "config.json";
const state = {values: {}, files: {}, other: "", dropped: []};

/* A value of "" is not given; that of a flag is "on". */
function optionWords(verb, values) {
  const given = Object.entries(values).filter(([name, value]) => value !== "" && optionOf(verb, name));
  return given.flatMap(([name, value]) => value === "on" && !optionOf(verb, name).argument ? ["--" + name] : [`--${name}`, value]);
}

const profileWords = () => ["profile", state.values.model, ...optionWords("profile", state.values), "--device", "meta"];

/* fit's batch is of all GPUs. */
function fitWords() {
  const {model, gpus, gpu, batch, ...rest} = state.values;
  const all = /^\d+$/.test(batch) && /^\d+$/.test(gpus) ? String(Number(batch) * Number(gpus)) : batch || "";
  return ["fit", model, "--gpus", gpus, "--gpu", gpu, ...optionWords("fit", {batch: all, ...rest})];
}

const quoted = word => /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'";
const commandOf = words => ["memtape", ...words].map(quoted).join(" ");
/* A line may end between words, not in "--device". */
const unbroken = text => text.split(/(--[\w-]+)/).map((part, i) => i % 2 ? h("span", {class: "word"}, part) : part);

function readLink() {
  const link = viewNow() === "fit" ? linkNow() : new URLSearchParams();
  for (const name in state.values) if (!(name in DEFAULTS)) delete state.values[name];
  Object.assign(state.values, DEFAULTS);
  for (const [name, value] of link) {
    if (name === "config") state.files[CONFIG] = new TextEncoder().encode(value);
    else if (name === "beside") state.other = value;
    else if (name === "view") continue;
    else state.values[name] = value;
  }
  state.dropped = Object.keys(state.values).filter(name => !(name in DEFAULTS || optionOf("profile", name)));
  if (tool.cards.length && !tool.cards.some(card => card.name === state.values.gpu)) state.dropped.push("gpu");
  for (const name of state.dropped) {
    if (name in DEFAULTS) state.values[name] = DEFAULTS[name];
    else delete state.values[name];
  }
}

function writeLink() {
  const link = new URLSearchParams(Object.entries(state.values).filter(([, value]) => value !== ""));
  const config = state.files[CONFIG];
  if (config && state.values.model === CONFIG) link.set("config", new TextDecoder().decode(config));
  if (state.other) link.set("beside", state.other);
  history.replaceState(null, "", "#" + link);
}

/* ---- the form ---- */

/* control: an input or a select, which may have others beside it. */
function field(name, label, text, control, ...beside) {
  fill(control, {id: "in-" + name, name, "aria-describedby": `about-${name} bad-${name}`}, []);
  const isFlag = control.type === "checkbox";
  control.addEventListener("input", () => {
    state.values[name] = isFlag ? control.checked ? "on" : "" : control.value.trim();
    change();
  });
  return h("div", {class: "field"}, isFlag ? h("label", null, control, label) : [h("label", {for: control.id}, label), control],
    beside, h("p", {id: "about-" + name}, unbroken(text)), h("p", {class: "bad", id: "bad-" + name, role: "alert"}));
}

function fillForm() {
  for (const input of document.querySelectorAll("#form [name]")) {
    if (input.type === "checkbox") input.checked = state.values[input.name] === "on";
    else input.value = state.values[input.name] || "";
  }
}

const textInput = attributes => h("input", {type: "text", autocomplete: "off", spellcheck: "false", autocapitalize: "off",
  ...attributes});
const select = choices => h("select", null, choices.map(([value, text]) => h("option", {value}, text)));

function optionField({name, argument, text, choices, others, defaults}) {
  const list = choices && others && h("datalist", {id: "list-" + name}, choices.map(value => h("option", {value})));
  const about = [text, ...list ? [choices.join(", ")] : []].join(": ") + (defaults.profile ? ` (default ${defaults.profile})` : "");
  return field(name, "--" + name, about, !argument ? h("input", {type: "checkbox"})
    : choices && !others ? select([["", "not given"], ...choices.map(value => [value, value])])
    : textInput({placeholder: argument, list: list ? "list-" + name : null}), list);
}

/* 1, 2, 3, 4, then four stops for each doubling. */
const stop = i => i < 3 ? i + 1 : (4 + (i - 3) % 4) * 2 ** Math.floor((i - 3) / 4);
function slider(name, label, scale, stops) {
  const input = h("input", {type: "range", id: "slide-" + name, min: 0, max: stops, "aria-label": label});
  const value = i => String(stop(Number(i)) * scale);
  input.addEventListener("input", () => {
    input.setAttribute("aria-valuetext", value(input.value));
    element("in-" + name).value = state.values[name] = value(input.value);
    change();
  });
  return input;
}

/* The slider, and the text while nothing is typed, follow what the program took. */
function followSlider(name, taken, scale) {
  const input = element("slide-" + name);
  let i = 0;
  while (i < Number(input.max) && stop(i) * scale < taken) i++;
  input.value = i;
  input.setAttribute("aria-valuetext", thousands(taken));
  element("in-" + name).placeholder = String(taken);
}

function configInput() {
  const input = h("input", {type: "file", accept: ".json", id: "config"});
  input.addEventListener("change", () => input.files[0] && takeConfig(input.files[0]));
  return h("label", {class: "file"}, input, h("span", null, "Choose a config.json"));
}

async function takeConfig(file) {
  state.files[CONFIG] = new Uint8Array(await file.arrayBuffer());
  element("in-model").value = state.values.model = CONFIG;
  showView("fit");
  change();
}

function makeForm(models) {
  const rows = tool.options.filter(({verbs}) => verbs.includes("profile")), groups = IN_GROUPS.map(name => rows.find(row => row.name === name).group);
  const shown = rows.filter(({name}) => !HIDDEN.includes(name));
  const list = h("datalist", {id: "models"}, models.map(value => h("option", {value})));
  put(element("setup"), h("fieldset", null, h("legend", null, "Model and machine"), h("div", {class: "fields"},
    field("model", "Model", "A preset or its name on the Hub, or a config.json, chosen or dropped here.", textInput({list: "models"}), list, configInput()),
    field("batch", "Batch, b", "Sequences at once, on one GPU.", textInput({inputmode: "numeric"}), slider("batch", "Batch, in steps", 1, 39)),
    field("seq", "Sequence, s", "Tokens in each; 4k is 4096.", textInput({}), slider("seq", "Sequence, in steps", 32, 47)),
    field("gpus", "GPUs", "With more than one, the ways to divide the model are searched at once.", textInput({inputmode: "numeric"})),
    field("gpu", "Kind of GPU", "The answer is compared with its memory.", select(tool.cards.map(({name}) => [name, name]))))));
  element("techniques").open = innerWidth > 640; // on a phone the picture comes first
  put(element("techniques"), h("div", {class: "fields"}, FIRST.map(name => optionField(shown.find(row => row.name === name)))), groups.map(group => h("details", null, h("summary", null, "More: " + group), h("div", {class: "fields"},
    shown.filter(option => option.group === group && !FIRST.includes(option.name)).map(optionField)))));
  element("form").addEventListener("submit", e => e.preventDefault());
  document.addEventListener("dragover", e => e.preventDefault());
  document.addEventListener("drop", e => {
    e.preventDefault();
    if (e.dataTransfer.files[0]) takeFile(e.dataTransfer.files[0]);
  });
}

/* The program would look for a model of the Hub in a cache, which a page has not. */
const NO_CACHE = /, and no config\.json of it in Hugging Face's cache.*; hf download (\S+) config\.json puts it there/;

/* A refusal stands beside the field that it names first. */
function refuse(text) {
  const reason = text.trim().replace(/^memtape \w+: /, "").replace(NO_CACHE, "; save $1's config.json from huggingface.co/$1 and drop it here");
  const named = [...reason.matchAll(/--([\w-]+)|^(MODEL)/g)].map(m => m[2] ? "model" : m[1]);
  const name = named.find(n => element("bad-" + n)) || "model", input = element("in-" + name);
  replace(element("bad-" + name), reason);
  input.setAttribute("aria-invalid", "true");
  for (let folded = input.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
  return input;
}

function showRefusal(text) {
  for (const p of document.querySelectorAll("#form [id^='bad-']")) {
    if (p.textContent) replace(p);
    element(p.id.replace("bad-", "in-")).removeAttribute("aria-invalid");
  }
  page.classList.toggle("refused", text !== "");
  if (!text) return;
  const input = refuse(text);
  showVerdict([h("span", {class: "bad"}, "This set-up is refused: "), "see ",
    h("button", {type: "button", class: "link", onclick: () => input.focus()}, input.labels[0].textContent)], "refused");
  replace(element("cards"));
}

/* ---- the answer ---- */

function showVerdict(text, brief) {
  replace(element("verdict"), text);
  replace(element("now"), brief);
}

/* Each card has what `fit` takes for its capacity; some multiply no bf16. */
function showCards(report) {
  const needed = report.steady.reserved, bf16 = [report.model.dtype, report.memory_options.amp].includes("bf16");
  const runs = card => !(bf16 && card.f16Only), fits = card => runs(card) && card.capacity >= needed;
  const mine = tool.cards.find(card => card.name === state.values.gpu) || tool.cards[0];
  showVerdict(["On one GPU a training step reserves ", h("strong", null, rounded(needed)), runs(mine)
    ? [`: ${fits(mine) ? "fits" : "too much for"} ${mine.name}, which has `, rounded(mine.capacity)]
    : `: ${mine.name} multiplies no bf16; try --dtype f16`],
  `${scaled(needed)}: ${fits(mine) ? "fits" : "not on"} ${mine.name}`);
  const verdict = card => fits(card) ? "fits" : runs(card) ? "too small" : "no bf16";
  const sorted = [...tool.cards].sort((a, b) => a.capacity - b.capacity);
  replace(element("cards"), h("dl", {class: "cards", "aria-label": "On which cards"}, ["fits", "too small", "no bf16"].map(said => {
    const cards = sorted.filter(card => verdict(card) === said);
    return cards.length > 0 && [h("dt", {class: said === "fits" && "good"}, said), h("dd", {"data-said": said}, cards.map(card =>
      [h("span", null, h("b", null, card.name), " ", rounded(card.capacity)), " "]))];
  })));
}

function showNotes(text) {
  const {dropped} = state;
  replace(element("notes"), text.trim(), dropped.length > 0 && ` The link has ${dropped.join(", ")}, which cannot be set here.`);
}

function showAnswer(result) {
  if (!result.out) return showRefusal(result.err);
  const report = JSON.parse(result.out), oom = report.out_of_memory;
  showRefusal("");
  showNotes(result.err);
  followSlider("batch", report.model.batch, 1), followSlider("seq", report.model.seq, 32);
  if (report.steady) showCards(report);
  else showVerdict([h("span", {class: "bad"}, "Out of memory: "), rounded(oom.requested), " refused"], "out of memory");
  const hero = head(makeRun(report, null)), old = page.querySelector(".hero");
  if (old) old.replaceWith(hero);
  else put(page, hero);
  page.classList.add("stale");
}

/* ---- the whole report, once the answer stands ---- */

let shown = null, other = null;

function keep() {
  other = shown, state.other = commandOf(state.words);
  writeLink();
}

function showOther() {
  if (!other || !shown || other === shown) return;
  replace(element("beside"), compareSection(other, shown, () => {
    other = null, state.other = "";
    writeLink();
    replace(element("beside"));
  }));
}

function showWhole(result) {
  if (!result.html) return;
  shown = readRun(result.html, "the report");
  replace(page);
  replace(actions);
  element("keep").hidden = false;
  profilePage(shown);
  showOther();
  page.classList.remove("stale");
  page.dataset.words = state.words.join(" ");
}

/* ---- runs ---- */

const tool = {module: null, options: null, cards: [], front: null, behind: null};
let wanted = null, running = false, pause = 0;

/* The latest words win: what was wanted in between is not run. */
async function answer() {
  if (running) return;
  running = true;
  try {
    while (wanted) {
      const words = wanted;
      wanted = null;
      take(words, await tool.front.run([...words, "--json", "-"]));
    }
  } finally {
    running = false;
  }
}

function take(words, result) {
  state.words = words;
  showAnswer(result);
  page.dataset.answer = words.join(" ");
  clearTimeout(pause);
  if (result.out) pause = setTimeout(finish, 150, words);
}

async function finish(words) {
  const result = await tool.behind.run([...words, "--quiet", "--html", "/dev/html"]);
  if (words === state.words && !wanted) showWhole(result);
}

function showCommands(words) {
  replace(element("command"), unbroken(commandOf(words)));
  replace(element("fit-command"), unbroken(commandOf(fitWords())));
  showMeasuredCommand();
  element("fit-result").classList.toggle("stale-answer", element("fit-result").dataset.words !== fitWords().join(" "));
  replace(element("fit-button"), `Search: ${state.values.gpus} ${TIMES} ${state.values.gpu}`);
}

function change() {
  clearTimeout(pause); // where an answer takes longer than the pause, too
  wanted = profileWords();
  showCommands(wanted);
  writeLink();
  answer();
}

async function copy() {
  const text = element("command").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(element("command"));
    document.execCommand("copy");
  }
  replace(element("copy"), "Copied");
  setTimeout(() => replace(element("copy"), "Copy"), 2000);
}

/* ---- does it fit? ---- */

/* The recipe with so many parts a stage, which are a key of it. */
function withInterleave(recipe, n) {
  const [names, ...keys] = recipe.split(/[:,]/), kept = keys.filter(key => !key.startsWith("interleave="));
  if (n > 1) kept.push("interleave=" + n);
  return kept.length ? (names || "plain") + ":" + kept.join(",") : names;
}

/* A row of the search becomes the set-up: each key that is an option, unless its value changes nothing. */
function choose(setup) {
  const idle = {stage: 0, zero: 0, microbatches: setup.pp > 1 ? 0 : 1};
  for (const [name, value] of Object.entries({...setup, batch: setup.microbatch})) {
    const same = typeof value === "number" && name !== "batch" && value === (name in idle ? idle[name] : 1);
    if (optionOf("profile", name)) state.values[name] = value === true ? "on" : value === false || same ? "" : String(value);
  }
  state.values.recipe = withInterleave(state.values.recipe || "", setup.interleave);
  fillForm();
  change();
  element("answer").scrollIntoView();
}

function fitTable(fit) {
  const many = n => n > 1 ? String(n) : "";
  const {reached} = fit, rates = reached ? [reached.least, reached.most] : [1];
  const fast = (n, format) => n === null || n === undefined ? "" : rates.map(rate => format(n * rate)).join("\u2013");
  const columns = [["", ""], ["", ""], ["tp", "n"], ["pp", "n"], ["cp", "n"], ["dp", "n"], ["ZeRO", "n"], ["batches", "n"], ["checkpoint", ""],
    ["offload", ""], ["reserved", "n"], ["tokens/s", "n"], ["MFU", "n"]];
  const rows = fit.setups.slice(0, 12).map((s, i) => [
    h("button", {type: "button", class: "link", onclick: () => choose(s), "aria-label": "Show set-up " + (i + 1)}, "show"),
    s.fits ? "fits" : h("span", {class: "bad"}, "does not fit"),
    many(s.tp) + (s.sp ? "+sp" : ""), many(s.pp), many(s.cp), many(s.dp), String(s.zero), s.microbatches + TIMES + s.microbatch,
    s.checkpoint, s.offload, exact(s.reserved), fast(s.tokens_per_second, n => thousands(Math.floor(n))), fast(s.mfu, mfu => Math.round(100 * mfu)) + (s.mfu ? " %" : "")]);
  return table("Set-ups that fit", columns, rows);
}

async function search() {
  const words = fitWords(), button = element("fit-button");
  element("fit").open = button.disabled = true;
  replace(element("fit-result"), h("p", null, "Measuring"));
  tool.behind.stop();
  const result = await tool.behind.run([...words, "--json", "/dev/json"]);
  button.disabled = false;
  replace(element("fit-result"), result.json ? [scroller("What memtape fit prints", h("pre", null, result.out)),
    fitTable(JSON.parse(result.json))] : h("p", {class: "bad", role: "alert"}, result.err));
  if (!result.json) refuse(result.err);
  element("fit-result").dataset.words = words.join(" ");
  showCommands(profileWords());
}

/* ---- start ---- */

/* Learns the options that are no keys, and the GPUs; returns the models that the program knows by name. */
async function learn() {
  const {options, presets, gpus} = JSON.parse((await tool.behind.run(["help", "--json"])).out);
  tool.options = options.filter(({key}) => !key);
  tool.cards = gpus.map(({name, memory, kept_aside, f16_only}) => ({name, capacity: memory - kept_aside, f16Only: f16_only}));
  return presets;
}

/* What the link has beside the set-up. */
async function readOther() {
  const words = state.other.split(" ").slice(1);
  if (!state.other) return;
  const result = await tool.behind.run([...words, "--quiet", "--html", "/dev/html"]);
  if (result.html) other = readRun(result.html, "the other set-up"), showOther();
  else state.dropped.push("beside"), state.other = "", showNotes("");
}

/* The first answer waits neither for help nor for the form. */
async function begin() {
  const module = await unpack();
  tool.module = module, tool.front = new Program(module), tool.behind = new Program(module);
  window.memtape = (...all) => tool.front.run(...all); // for the console, and for tests
  openViews({fit: () => { if (tool.options) readLink(), fillForm(), change(), readOther(); }, tape: openTape, train: openTraining,
    course: openCourse});
  readLink();
  const words = profileWords(), first = tool.front.run([...words, "--json", "-"]);
  makeForm(await learn());
  readLink();
  fillForm();
  put(element("theme-place"), themeButton());
  element("copy").addEventListener("click", copy);
  element("keep").addEventListener("click", keep);
  element("fit-button").addEventListener("click", search);
  element("in-gpus").addEventListener("change", () => Number(state.values.gpus) > 1 && search());
  element("fit").addEventListener("toggle", () => element("fit").open && !element("fit-result").hasChildNodes() && search());
  element("measured-button").addEventListener("click", compareMeasured);
  showCommands(words);
  const result = await first;
  if (words.join(" ") === profileWords().join(" ")) take(words, result);
  else change(); // the link has what is no option, or has changed meanwhile
  readOther();
}

begin().catch(error => showVerdict([h("span", {class: "bad"}, "The program does not start in this browser: "), error.message], ""));
