/* main.js: puts the page together. */

const page = document.getElementById("page"), actions = document.getElementById("actions");
const embedded = id => JSON.parse(document.getElementById(id).textContent);

const pages = {profile: () => profilePage(makeRun(report, embedded("more"))), sweep: () => sweepPage(report),
  plan: () => planPage(report)};

const report = embedded("report"), kind = /^memtape\.([a-z]+)\//.exec(report.schema)[1];
put(actions, themeButton());
pages[kind]();
put(page, h("footer", null, report.schema + DOT + "bytes are exact; what the page shows is in it as JSON"));
