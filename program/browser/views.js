/* views.js: what the page shows, one thing at a time. The link says which: "#view=tape&...". */

const VIEWS = {fit: "What it takes", tape: "The tape", train: "Train", course: "The course"};

const linkNow = () => new URLSearchParams(location.hash.slice(1));
const viewNow = () => VIEWS[linkNow().get("view")] ? linkNow().get("view") : "fit";

/* Keeps the view's state in the link; "" is not kept. */
function keepInLink(view, values) {
  const link = new URLSearchParams({view, ...Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""))});
  history.replaceState(null, "", "#" + link);
}

function showView(view) {
  for (const name in VIEWS) {
    element("view-" + name).hidden = name !== view;
    const link = element("to-" + name);
    if (name === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.dataset.view = view;
}

/* open: {view: function that shows what the link says}. A view that is opened again has its last link. */
function openViews(open) {
  const links = {};
  put(element("views"), Object.entries(VIEWS).map(([name, title]) => h("a", {id: "to-" + name, href: "#view=" + name,
    onclick: e => {
      e.preventDefault();
      links[viewNow()] = location.hash;
      location.hash = links[name] || "view=" + name;
    }}, title)));
  document.querySelector(".skip").addEventListener("click", e => {
    e.preventDefault(); // the link is the set-up
    const place = viewNow() === "fit" ? element("verdict") : element("view-" + viewNow());
    place.tabIndex = -1;
    place.focus();
  });
  const follow = () => {
    showView(viewNow());
    open[viewNow()]();
  };
  addEventListener("hashchange", follow);
  showView(viewNow());
  if (viewNow() !== "fit") open[viewNow()]();
}
