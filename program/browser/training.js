/* training.js: trains a model on text, here. The program runs for a second at a time: then it is interrupted as if by
 * Ctrl-C, saves, and goes on with --resume, so that stopping and continuing changes no bit. */

const TRAINED = [["layers", "Layers", "2"], ["hidden", "Width", "32"], ["heads", "Heads", "4"], ["seq", "Length of a sequence", "32"],
  ["batch", "Sequences in a batch", "8"], ["steps", "Steps", "1000"], ["seed", "Seed", "1"]];
const TRAINED_CHOICES = [["act", "Activation", ["gelu", "relu"]], ["checkpoint", "Checkpoint", ["none", "full"]],
  ["optimizer", "Optimizer", ["adamw", "sgd", "lion", "adafactor"]]];
const SAVED = "/dev/saved", SLICE_SECONDS = 1, WIDE_ENOUGH = 200;
const training = {program: null, made: false, going: false, ended: false, saved: null, losses: [], step: 0};

/* Reads a step from "█▌  │ 12/300  loss 2.31  14 k tok/s  1.2 MiB (peak 3.4 MiB)  ETA 5 s". */
function showStep(bar) {
  const found = /│ ((\d+)\/\d+) {2}loss (\S+) {2}(\S+ ?\S* tok\/s)/.exec(bar);
  if (!found) return;
  const [, place, step, loss, speed] = found;
  training.step = Number(step);
  replace(element("train-now"), ["step " + place, "loss " + loss, speed].join(DOT));
  if (training.step > (training.losses.at(-1) || [0])[0]) training.losses.push([training.step, Number(loss)]);
  drawLosses();
}

/* ---- memory, which each step after the first takes alike ---- */

const profiledWords = () => ["profile", "gpt", "--vocab", "256", ...optionsOfTraining(["steps", "seed"]), "--device", "meta"];

async function showMemory() {
  const words = profiledWords(), result = await tool.behind.run([...words, "--quiet", "--html", "/dev/html"]);
  if (!result.html) return;
  const run = readRun(result.html, "memory"), alive = new Alive(run, null);
  const chart = new Chart(run, {label: "Memory over a step of training: the chosen event", chosen: event => alive.show(event)});
  chart.showStep(2);
  alive.show(chart.cursor);
  replace(element("train-profiled"), unbroken(commandOf(words)));
  replace(element("train-memory"), chart.element, alive.element);
}

/* ---- the loss ---- */

function drawLosses() {
  const {losses} = training, wide = element("train-loss").clientWidth || 560, high = 150, left = 34, steps = Number(wordOf("steps")) || 1;
  if (!losses.length) return replace(element("train-loss"));
  const most = Math.ceil(Math.max(...losses.map(([, loss]) => loss))), x = step => left + (wide - left - 4) * step / steps;
  const y = loss => 6 + (high - 26) * (1 - loss / most), [step, last] = losses.at(-1);
  replace(element("train-loss"), svg("svg", {class: "plot", viewBox: `0 0 ${wide} ${high}`, role: "img",
    "aria-label": `The loss: ${losses[0][1]} after step ${losses[0][0]}, ${last} after step ${step}`},
  Array.from({length: most + 1}, (_, i) => [svg("line", {class: "grid", x1: left, x2: wide - 4, y1: y(i), y2: y(i)}),
    svg("text", {x: left - 8, y: y(i) + 4, "text-anchor": "end"}, String(i))]),
  svg("polyline", {class: "loss", points: losses.map(([s, loss]) => `${x(s).toFixed(1)},${y(loss).toFixed(1)}`).join(" ")}),
  svg("text", {x: wide - 4, y: high - 4, "text-anchor": "end"}, `${thousands(steps)} steps`)));
}

/* ---- running ---- */

const wordOf = name => element("train-" + name).value.trim();
const optionsOfTraining = (others = []) => [...TRAINED, ...TRAINED_CHOICES].map(([name]) => name)
  .flatMap(name => others.includes(name) || wordOf(name) === "" || wordOf(name) === "none" ? [] : ["--" + name, wordOf(name)]);

/* What it would be in a terminal. */
const trainCommand = () => ["train", "--data", "text.txt", ...optionsOfTraining()];

/* A slice ends by itself; one that does not get as far as its first step is dropped. */
function stopTraining() {
  const slice = training.slice;
  training.going = false;
  replace(element("train-stop"), "Stopping");
  setTimeout(() => {
    if (slice !== training.slice) return;
    training.program.stop();
    training.drop({status: 130, out: "", saved: []});
  }, 1000 * (SLICE_SECONDS + 4));
}

async function runSlice() {
  const files = {"text.txt": new TextEncoder().encode(element("train-text").value)};
  let rest = "";
  if (training.saved) files.run = training.saved;
  const options = training.saved ? ["--resume", "run"] : optionsOfTraining();
  training.program ||= new Program(tool.module);
  training.slice = {};
  const dropped = new Promise(resolve => { training.drop = resolve; });
  return Promise.race([dropped, training.program.run(["train", "--data", "text.txt", ...options, "--save", SAVED], files, {
    seconds: SLICE_SECONDS, columns: WIDE_ENOUGH, told: text => {
      const bars = (rest + text).split("\x1b[K"); // each ends so
      rest = bars.pop();
      bars.forEach(showStep);
    }})]);
}

function showState() {
  const button = document.activeElement;
  const begun = training.saved !== null, over = begun && !training.going && training.ended;
  element("train-go").hidden = training.going || over;
  replace(element("train-go"), begun ? "Continue" : "Train");
  element("train-stop").hidden = !training.going;
  replace(element("train-stop"), "Stop");
  element("train-anew").hidden = training.going || !begun;
  document.querySelector(".trained").hidden = !training.going && !begun;
  for (const input of document.querySelectorAll("#train-fields :is(input, select), #train-text")) input.disabled = training.going || begun;
  if (button.hidden) [...button.parentElement.children].find(other => !other.hidden).focus();
}

/* It stands beside the field that it names. */
function showTrainingRefusal(text) {
  for (const field of document.querySelectorAll("#view-train [aria-invalid]")) field.removeAttribute("aria-invalid");
  const [, name] = /--(\w+)/.exec(text) || ["", "text"], field = element("train-" + name) || element("train-text");
  if (text) field.setAttribute("aria-invalid", "true"), field.parentElement.append(element("train-bad"));
  replace(element("train-bad"), text.replace(/^memtape \w+: /, ""));
}

/* 130: interrupted, so there is more to do. */
async function train() {
  training.going = true, training.ended = false;
  showTrainingRefusal("");
  showState();
  if (!training.saved) showMemory();
  while (training.going) {
    const result = await runSlice();
    if (result.saved.length) training.saved = result.saved;
    if (result.status === 130) continue;
    training.going = false, training.ended = result.status === 0;
    if (result.status) showTrainingRefusal(result.err);
    else replace(element("train-end"), result.out.trim().split("\n").at(-1));
  }
  training.slice = null;
  element("view-train").dataset.step = training.step;
  showState();
  await write();
}

/* What the model writes by now, from the first words of its text on. */
async function write() {
  if (!training.saved) return;
  const begin = element("train-text").value.split(/(?<=\s)/).slice(0, 2).join(""), saved = training.saved;
  const {out, err} = await tool.behind.run(["generate", "--model", "run", "--prompt", begin, "--tokens", "240", "--temperature", "0.5"], {run: saved});
  if (saved !== training.saved) return;
  element("train-writes").hidden = false;
  replace(element("train-wrote"), out || err);
}

function beginAnew() {
  Object.assign(training, {saved: null, losses: [], step: 0, ended: false});
  for (const part of ["now", "profiled", "memory", "end", "loss", "wrote"]) replace(element("train-" + part));
  element("train-writes").hidden = true;
  showState();
}

/* ---- the view ---- */

const TEXT_TO_LEARN = `A tensor is made, a block of memory is taken for it, and the block goes back when nothing holds the tensor.
The tape holds what backward will read. An op that needs its input keeps its input; an op that needs its output keeps
its output; an op that needs nothing keeps nothing. What is kept is counted once, however many ops keep it.
Forward fills the tape, backward empties it, and the peak is where the two meet. The optimizer holds two numbers for
each weight, and the weights themselves stay. So a step takes what stays, what is kept, and what is made on the way.
`.repeat(3);

function makeTraining() {
  const labelled = (name, label, control) => h("div", {class: "field"}, h("label", {for: "train-" + name}, label),
    fill(control, {id: "train-" + name}, []));
  const button = (id, text, f) => h("button", {type: "button", id: "train-" + id, onclick: f}, text);
  put(element("view-train"), h("h2", null, "Train a tiny transformer, here"),
    h("p", {class: "note"}, "Paste a text. The model learns its bytes, in this tab; what a step allocates is drawn beside the loss."),
    labelled("text", "Text", h("textarea", {rows: 6, spellcheck: "false"})),
    h("div", {class: "fields", id: "train-fields"}, TRAINED.map(([name, label, value]) => labelled(name, label, textInput({inputmode: "numeric", value}))),
      TRAINED_CHOICES.map(([name, label, values]) => labelled(name, label, select(values.map(value => [value, value]))))),
    h("div", {class: "toolbar"}, button("go", "Train", train), button("stop", "Stop", stopTraining),
      button("anew", "Begin anew", beginAnew)),
    h("div", {class: "command"}, h("code", {id: "train-command"})), h("p", {id: "train-bad", class: "bad", role: "alert"}),
    h("p", {id: "train-now", class: "instant"}), h("div", {class: "trained"}, h("figure", null, h("figcaption", null, "Loss"), h("div", {id: "train-loss"})),
      h("figure", null, h("figcaption", null, "Memory over a step"), h("p", {class: "note"}, h("code", {id: "train-profiled"})), h("div", {id: "train-memory"}))),
    h("p", {id: "train-end", role: "status"}),
    h("figure", {id: "train-writes", hidden: true}, h("figcaption", null, "What it writes now"), h("pre", {id: "train-wrote"})));
  element("train-text").value = TEXT_TO_LEARN;
  const showCommand = () => replace(element("train-command"), unbroken(commandOf(trainCommand())));
  element("train-fields").addEventListener("input", showCommand);
  showCommand();
  showState();
}

function openTraining() {
  if (!training.made) makeTraining();
  training.made = true;
}
