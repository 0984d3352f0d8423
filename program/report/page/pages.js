/* pages.js: the parts of a page in their order, and its buttons. */

/* The system's choice of light or dark holds until the button is used. */
function themeButton() {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const button = h("button", {type: "button", id: "theme"});
  let chosen = null;
  const show = () => {
    root.dataset.theme = chosen || (system.matches ? "dark" : "light");
    replace(button, root.dataset.theme === "dark" ? "Light" : "Dark");
  };
  button.addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; show(); });
  system.addEventListener("change", show);
  show();
  return button;
}

function compareButton(run, place) {
  const input = h("input", {type: "file", accept: ".html,.json", id: "other", class: "hidden", tabindex: "-1",
    "aria-hidden": "true"});
  const close = () => replace(place);
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (!file) return;
    try {
      const other = readRun(await file.text(), file.name);
      if (!/^memtape\.profile\//.test(other.report.schema)) throw new Error(file.name + " is not of a profile");
      replace(place, compareSection(run, other, close));
    } catch (error) {
      replace(place, section("Beside another run", null, h("p", {class: "bad", role: "alert"}, String(error.message))));
    }
    input.value = "";
    place.scrollIntoView({block: "start"});
  });
  return [h("button", {type: "button", id: "compare", onclick: () => input.click(),
    title: "Choose a report of memtape profile, HTML or JSON"}, "Compare\u2026"), input];
}

function profilePage(run) {
  const place = h("div", {id: "beside"});
  actions.prepend(...compareButton(run, place));
  put(page, head(run), place);
  put(page, run.timeline ? timelineSection(run) : stepFacts(run.report));
  if (run.report.out_of_memory) return;
  put(page, savedSection(run), tapeSection(run), growthTable(run), formulaTable(run.report),
    streamTable(run.report), phaseTables(run.report));
}
