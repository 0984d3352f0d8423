/* measured.js: what ran elsewhere beside the set-up: a message that memory ran out, a log, a memory snapshot. */

const PASTED = "error.txt";
const measured = {name: PASTED, bytes: null};

function measuredWords() {
  return [measured.name === PASTED ? "oom" : "compare", measured.name, state.values.model, ...optionWords("compare", state.values)];
}

/* What is shown is of the set-up as it was when it was asked for. */
function showMeasuredCommand() {
  replace(element("measured-command"), unbroken(commandOf(measuredWords())));
  element("measured-result").classList.toggle("stale-answer", element("measured-result").dataset.words !== measuredWords().join(" "));
}

async function compareMeasured() {
  const button = element("measured-button"), place = element("measured-result");
  const text = element("pasted").value;
  if (text.trim()) measured.name = PASTED, measured.bytes = new TextEncoder().encode(text);
  if (!measured.bytes) return replace(place, h("p", {class: "bad", role: "alert"}, "There is no message yet: paste it above."));
  const words = measuredWords();
  showMeasuredCommand();
  button.disabled = true;
  replace(place, h("p", null, "Measuring"));
  const result = await tool.behind.run(words, {...state.files, [measured.name]: measured.bytes});
  button.disabled = false;
  replace(place, result.err && h("p", {class: result.out ? "note" : "bad", role: "alert"}, result.err.trim()),
    result.out && scroller("What memtape compare prints", h("pre", null, result.out)));
  place.dataset.words = words.join(" ");
  showMeasuredCommand();
}

/* A file that is dropped, and is no config.json. */
async function takeMeasured(file) {
  measured.name = file.name.replace(/[^\w.-]/g, "_"), measured.bytes = new Uint8Array(await file.arrayBuffer());
  element("pasted").value = "";
  showView("fit");
  element("measured").open = true;
  await compareMeasured();
  element("measured").scrollIntoView();
}

/* A config.json says what family its model is of. */
async function isConfig(file) {
  if (!/\.json$/i.test(file.name)) return false;
  try {
    return "model_type" in JSON.parse(await file.text());
  } catch {
    return true; // the program says what is wrong with it
  }
}

async function takeFile(file) {
  return await isConfig(file) ? takeConfig(file) : takeMeasured(file);
}
