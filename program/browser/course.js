/* course.js: the lessons, with live cells in place of quoted output, and exercises that ask for a number first. */

const PROGRESS = "memtape-course";
const course = {all: null, program: null};

/* {lesson: [numbers of exercises that are right]}; where a browser keeps nothing, for as long as the page is open. */
function progress() {
  try {
    return JSON.parse(localStorage.getItem(PROGRESS)) || {};
  } catch {
    return course.progress || {};
  }
}

function keepProgress(lesson, exercise) {
  const all = progress();
  all[lesson] = [...new Set([...(all[lesson] || []), exercise])];
  course.progress = all;
  try {
    localStorage.setItem(PROGRESS, JSON.stringify(all));
  } catch {
    /* a private window */
  }
}

/* ---- commands ---- */

/* As a shell splits them; of its language only quotes. */
const shellWords = command => [...command.matchAll(/(?:[^\s'"]|'[^']*'|"[^"]*")+/g)].map(([word]) => word.replace(/'([^']*)'|"([^"]*)"/g, "$1$2"));

/* Why a command does not run here; "" if it does. */
function whyNotHere(words) {
  const [program, verb] = words, device = words[words.indexOf("--device") + 1], files = /^--(html|json|trace|snapshot|save|load|data|model|resume)$/;
  if (program === "mpirun") return "It needs MPI: several processes.";
  if (!course.all.programs.includes(program))
    return program.includes("examples/") ? "A program of the repository's examples; ./run lesson builds it." : "A command for a terminal.";
  if (["train", "generate", "demo"].includes(verb)) return "It reads files of a disk. The page's view Train trains here.";
  if (verb === "sweep" && device !== "meta") return "It times steps on the CPU, which takes minutes here.";
  if (/cuda|tally/.test(device) || words.some(word => /^cuda/.test(word))) return "It needs a device that a browser does not have.";
  if (words.includes("--svg")) return "It writes the picture that stands below.";
  if (words.some((word, i) => files.test(word) && words[i + 1] !== "-" || /^[\w./-]+\.(json|gguf)$/.test(word))) return "It reads or writes files of a disk.";
  return "";
}

const plainLine = line => line.trim().split(/\s+/).join(" ");

/* What the program prints, with the lines that the lesson quotes set off. */
function showOutput(place, text, quoted) {
  const told = new Set(quoted.split("\n").map(plainLine).filter(line => line && line !== "..."));
  replace(place, text.replace(/\n$/, "").split("\n").map(line => [h("span", {class: told.has(plainLine(line)) ? "told-line" : null}, line), "\n"]));
}

async function runCell(cell, button, place, quoted) {
  const [program, ...words] = shellWords(cell.dataset.command);
  if (button.textContent === "Stop") return course.program.stop(), void endCell(cell, button, "stopped");
  course.program ||= new Program(tool.module);
  replace(button, "Stop");
  const began = performance.now(), result = await course.program.run(words, {}, {program});
  showOutput(place, result.out + result.err, quoted);
  place.hidden = false;
  endCell(cell, button, `ran here in ${duration((performance.now() - began) / 1000)}`);
  cell.dataset.ran = result.status;
}

function endCell(cell, button, text) {
  replace(button, "Run");
  replace(cell.querySelector(".ran"), text);
}

function makeCell(cell) {
  const place = cell.querySelector("pre"), quoted = place.textContent, why = whyNotHere(shellWords(cell.dataset.command));
  const button = !why && h("button", {type: "button", onclick: () => runCell(cell, button, place, quoted)}, "Run");
  fill(place, {"aria-label": "What it prints", role: "region"}, []);
  place.hidden = !why || !quoted;
  cell.classList.toggle("quoted", why !== "");
  cell.prepend(h("div", {class: "cell-head"}, h("code", null, unbroken("$ " + cell.dataset.command)), button),
    h("p", {class: "note ran", role: "status"}, why && why + (quoted ? " As it prints on a machine:" : "")));
}

/* ---- exercises ---- */

/* "40,960", "40 KiB", "1.5e6 bytes", "14.3 %"; NaN for what is no number. */
function numberFrom(text) {
  const found = /^([\d\s,_.]+(?:e\d+)?)\s*([kmgt]i?)?(?:b|bytes?|%)?$/i.exec(text.trim());
  if (!found) return NaN;
  const unit = (found[2] || "").toLowerCase(), power = unit ? " kmgt".indexOf(unit[0]) : 0;
  return Number(found[1].replace(/[\s,_]/g, "")) * (unit.endsWith("i") ? 1024 : 1000) ** power;
}

/* How a number is wrong, where nothing is known of it. */
function hintFor(given, right) {
  const ratio = given / right, blocks = (given - right) / 512;
  for (const n of [2, 3, 4, 8, 16]) {
    if (ratio === n) return `That is ${n} times as much: a wider type, or something counted ${n} times?`;
    if (ratio === 1 / n) return `That is one ${n === 2 ? "half" : n + "th"} of it: a narrower type, or something left out?`;
  }
  if (Number.isInteger(blocks) && Math.abs(blocks) <= 8) return `That is off by ${plural(Math.abs(blocks), "block")} of 512 bytes.`;
  if (Math.abs(Math.log(ratio)) < 0.08 && Math.abs(ratio - 1) > 0.02) return "Close: is a KiB 1024 bytes here, or 1000?";
  return given > right ? `That is ${thousands(given - right)} too many.` : `That is ${thousands(right - given)} too few.`;
}

function makeAsk(place, lesson, i) {
  const {question, number, wrong} = place.dataset, right = Number(number), known = JSON.parse(wrong), id = `ask-${lesson}-${i}`;
  const input = textInput({id, inputmode: "numeric"}), said = h("p", {role: "status", class: "said"});
  const answer = [...place.parentElement.children].find(child => child.tagName === "DETAILS");
  const settle = () => {
    place.classList.add("right");
    replace(said, `${thousands(right)}: right, to the last digit.`);
    if (answer) answer.open = true;
  };
  const check = e => {
    e.preventDefault();
    const given = numberFrom(input.value);
    if (given === right) return keepProgress(lesson, i), settle();
    replace(said, Number.isNaN(given) ? "That is not a number." : known[given] || hintFor(given, right));
  };
  put(place, h("form", {onsubmit: check}, h("label", {for: id}, question), h("span", {class: "asked"}, input, h("button", {type: "submit"}, "Check"))), said);
  if ((progress()[lesson] || []).includes(i)) input.value = thousands(right), settle();
}

/* ---- the view ---- */

const asksOf = lesson => (course.all.lessons[lesson].html.match(/class="ask"/g) || []).length;

function progressText(lesson) {
  const all = asksOf(lesson), right = (progress()[lesson] || []).length;
  return all > 0 && h("span", {class: right >= all ? "times less" : "times"}, `${right} of ${all} right`);
}

const lessonLink = (lesson, text) => h("a", {href: "#view=course&lesson=" + lesson}, text);

function showRoutes(place) {
  put(place, h("h2", null, "The course"), h("p", {class: "note"}, "From one tensor to a model: a question, a prediction, a command that runs here, and what surprises."),
    course.all.routes.map(route => [h("h3", null, route.name), markup("p", route.about), h("ol", {class: "lessons"}, route.steps.map(({lesson, about}) =>
      h("li", null, lessonLink(lesson, course.all.lessons[lesson].title), " ", markup("span", about, {class: "dim"}), progressText(lesson))))]));
}

/* What course.py made of our own files. */
function markup(tag, html, attributes) {
  const made = h(tag, attributes);
  made.innerHTML = html;
  return made;
}

function showLesson(place, lesson) {
  const {title, html} = course.all.lessons[lesson], article = markup("article", html, {class: "lesson"});
  put(place, h("p", {class: "back"}, h("a", {href: "#view=course"}, "All lessons")), h("h2", null, title), article);
  article.querySelectorAll(".cell").forEach(makeCell);
  article.querySelectorAll(".ask").forEach((ask, i) => makeAsk(ask, lesson, i));
}

async function openCourse() {
  const place = element("view-course");
  course.all ||= JSON.parse(await new Response(unzipped("course")).text());
  const asked = linkNow().get("lesson"), lesson = course.all.lessons[asked] ? asked : "";
  if (viewNow() !== "course") return;
  replace(place);
  if (lesson) showLesson(place, lesson);
  else showRoutes(place);
  place.dataset.lesson = lesson;
  scrollTo(0, 0);
}
