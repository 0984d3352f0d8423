/* chart.js: memory over the events of a run, as areas stacked by category. */

const TALL = 270, TOP = 62, BOTTOM = 26, LEFT = 64, RIGHT = 12, STRIP = 30;

/* Steps of 1, 2, 5 times a power of 2 or 10, so that labels are round numbers of their unit. */
function ticksOf(most) {
  let unit = 1;
  while (most / unit >= 1024) unit *= 1024;
  const end = most / unit || 1, power = 10 ** Math.floor(Math.log10(end));
  const step = [0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5].map(f => f * power).filter(s => end / s >= 3.5).at(-1) || power;
  const ticks = [];
  for (let i = 0; i * step <= end * 1.0001; i++) ticks.push(i * step * unit);
  return ticks;
}

/* The x axis: places 0 to end, where event i lasts from at(i) to at(i + 1). */
function axisOf(t, byTime) {
  const n = t.events.length;
  if (!byTime) return {byTime, end: n, at: i => i, event: x => Math.max(0, Math.min(n - 1, Math.floor(x)))};
  const times = t.nanoseconds, last = times[n - 1] + Math.max(1, times[n - 1] / n);
  return {byTime, end: last, at: i => i < n ? times[i] : last, event: x => {
    let low = 0, high = n - 1; /* the last event that is not after x */
    while (low < high) {
      const middle = low + high + 1 >> 1;
      if (times[middle] <= x) low = middle; else high = middle - 1;
    }
    return low;
  }};
}

/* For each of n columns of [from, to) its event with most allocated; columns are narrow: within one,
 * only the highest can be seen. */
function columnsOf(t, axis, from, to, n) {
  const columns = new Array(n);
  for (let c = 0; c < n; c++) {
    const x = from + (to - from) * c / n, end = from + (to - from) * (c + 1) / n;
    let best = axis.event(x);
    for (let i = best + 1; i < t.events.length && axis.at(i) < end; i++) if (t.total[i] > t.total[best]) best = i;
    columns[c] = best;
  }
  return columns;
}

/* One path for a category: along its top to the right, back along the top of the one below. */
function areaPath(columns, width, yTop, yBelow) {
  const n = columns.length, x = c => (LEFT + width * c / n).toFixed(1);
  let d = "M" + x(0) + " " + yTop(columns[0]);
  for (let c = 0; c < n; c++) {
    if (c + 1 < n && yTop(columns[c + 1]) === yTop(columns[c])) continue;
    d += "V" + yTop(columns[c]) + "H" + x(c + 1);
  }
  for (let c = n - 1; c >= 0; c--) {
    if (c && yBelow(columns[c - 1]) === yBelow(columns[c])) continue;
    d += "V" + yBelow(columns[c]) + "H" + x(c);
  }
  return d + "Z";
}

/* The state of a chart: what is shown of which run, and what is chosen in it. */
class Chart {
  /* options: most (the scale's end in bytes), label; chosen(event) is called for a click. */
  constructor(run, options) {
    this.t = run.timeline;
    this.options = options;
    this.axis = axisOf(this.t, false);
    this.cursor = this.t.peak;
    this.plot = svg("svg", {class: "plot", "aria-hidden": "true", focusable: "false"});
    this.strip = svg("svg", {class: "strip", "aria-hidden": "true", focusable: "false"});
    this.tip = h("div", {class: "tip", hidden: true, "aria-hidden": "true"});
    this.frame = h("div", {class: "frame", tabindex: "0", role: "slider", "aria-label": options.label,
      "aria-valuemin": 0, "aria-valuemax": this.t.events.length - 1}, this.plot, this.tip);
    this.element = h("div", {class: "chart"}, this.toolbar(), this.frame, this.strip);
    this.whole();
    this.listen();
    /* In the next frame: what is drawn within the observer's call may resize what it observes. */
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.frame);
    this.describe();
  }

  /* ---- what is shown ---- */

  whole() { this.from = 0, this.to = this.axis.end; }

  /* What both steps (0), the first or the second take of the axis. */
  rangeOf(step) {
    const s = this.axis.at(this.t.steady);
    return [step === 2 ? s : 0, step === 1 ? s : this.axis.end];
  }

  showStep(step) { [this.from, this.to] = this.rangeOf(step); }

  /* The buttons for steps say what is shown; while a part of a step is, none is pressed. */
  pressSteps() {
    for (const button of this.steps ? this.steps.children : []) {
      const [from, to] = this.rangeOf(Number(button.dataset.value));
      button.setAttribute("aria-pressed", String(from === this.from && to === this.to));
    }
  }

  /* Keeps the place under `around` (0 to 1 of the width) where it is. */
  zoom(factor, around) {
    const {axis} = this, place = this.from + (this.to - this.from) * around;
    const least = axis.byTime ? axis.end / 1e5 : Math.min(8, axis.end);
    const length = Math.max(least, Math.min(axis.end, (this.to - this.from) * factor));
    this.move(place - length * around, length);
  }

  /* What a key or a button zooms around: the chosen event, or the middle where it is not shown. */
  around() {
    const place = (this.axis.at(this.cursor) - this.from) / (this.to - this.from);
    return place >= 0 && place <= 1 ? place : 0.5;
  }

  move(from, length) {
    this.from = Math.max(0, Math.min(this.axis.end - length, from));
    this.to = this.from + length;
    this.draw();
  }

  byTime(yes) {
    const first = this.axis.event(this.from), last = this.axis.event(this.to - 1e-9);
    this.axis = axisOf(this.t, yes);
    this.from = this.axis.at(first), this.to = this.axis.at(last + 1);
    this.draw();
  }

  get width() { return Math.max(120, this.frame.clientWidth - LEFT - RIGHT); }
  x(place) { return LEFT + this.width * (place - this.from) / (this.to - this.from); }
  y(bytes) { return TOP + TALL * (1 - bytes / this.most); }
  eventAt(clientX) {
    const {left} = this.frame.getBoundingClientRect();
    const f = Math.max(0, Math.min(1 - 1e-9, (clientX - left - LEFT) / this.width));
    return this.axis.event(this.from + (this.to - this.from) * f);
  }

  /* ---- drawing ---- */

  draw() {
    const {t, width} = this, ticks = ticksOf(this.options.most || t.highest);
    this.most = Math.max(ticks.at(-1), this.options.most || t.highest) || 1;
    const columns = columnsOf(t, this.axis, this.from, this.to, Math.round(width));
    this.plot.setAttribute("viewBox", `0 0 ${width + LEFT + RIGHT} ${TOP + TALL + BOTTOM}`);
    replace(this.plot, this.drawGrid(ticks), this.drawAreas(columns), this.drawPhases(), this.drawSteps(),
      this.drawPeak(), this.marker = svg("line", {class: "cursor", y1: 40, y2: TOP + TALL}),
      this.hover = svg("line", {class: "hover", y1: TOP, y2: TOP + TALL, visibility: "hidden"}),
      this.band = svg("rect", {class: "band", y: TOP, height: TALL, width: 0}));
    this.drawMarker();
    this.drawStrip();
    this.pressSteps();
  }

  drawGrid(ticks) {
    const right = LEFT + this.width;
    const label = this.axis.byTime
      ? duration((this.to - this.from) / 1e9) + " of " + duration(this.axis.end / 1e9)
      : "events " + thousands(Math.floor(this.from)) + " to " + thousands(Math.ceil(this.to) - 1);
    return [ticks.map(bytes => [
      svg("line", {class: "grid", x1: LEFT, x2: right, y1: this.y(bytes), y2: this.y(bytes)}),
      svg("text", {x: LEFT - 8, y: this.y(bytes) + 4, "text-anchor": "end"}, bytes ? scaled(bytes) : "0")]),
    svg("text", {x: right, y: TOP + TALL + 18, "text-anchor": "end"}, label)];
  }

  drawAreas(columns) {
    const {t, width} = this, n = t.columns.length;
    const stacked = columns.map(i => {
      const tops = [0];
      for (let c = 0; c < n; c++) tops.push(tops[c] + t.sums[i * n + c]);
      return tops;
    });
    return t.columns.map((name, c) => {
      if (!stacked.some(tops => tops[c + 1] > tops[c])) return null;
      return svg("path", {class: "area c-" + name, d: areaPath(stacked, width,
        tops => this.y(tops[c + 1]).toFixed(1), tops => this.y(tops[c]).toFixed(1))});
    });
  }

  drawPhases() {
    const right = LEFT + this.width;
    return this.t.phases.map(phase => {
      const from = this.x(this.axis.at(phase.from)), to = this.x(this.axis.at(phase.to));
      if (to <= LEFT || from >= right) return null;
      const left = Math.max(LEFT, from), room = Math.min(right, to) - left;
      return [from >= LEFT && svg("line", {class: "mark", x1: from, x2: from, y1: 22, y2: TOP + TALL}),
        room > 7 * phase.name.length && svg("text", {class: "phase", x: left + 5, y: 34}, phase.name)];
    });
  }

  drawSteps() {
    const {steady, events} = this.t, right = LEFT + this.width;
    if (!steady) return null;
    return [[0, steady, "first step"], [steady, events.length, "second step"]].map(([first, end, name]) => {
      const from = this.x(this.axis.at(first)), to = this.x(this.axis.at(end)), left = Math.max(LEFT, from);
      if (Math.min(right, to) - left < 80) return null;
      return [from >= LEFT && svg("line", {class: "mark step", x1: from, x2: from, y1: 2, y2: TOP + TALL}),
        svg("text", {class: "step-name", x: left + 5, y: 13}, name)];
    });
  }

  drawPeak() {
    const {t} = this, x = this.x(this.axis.at(t.peak) + (this.axis.byTime ? 0 : 0.5));
    if (x < LEFT || x > LEFT + this.width) return null;
    const flip = x > LEFT + this.width - 120, y = this.y(t.total[t.peak]);
    return svg("g", {class: "peak"}, svg("circle", {cx: x, cy: y, r: 3.5}),
      svg("text", {x: flip ? x - 8 : x + 8, y: y - 7, "text-anchor": flip ? "end" : "start"},
        (t.events[t.peak].kind === "oom" ? "refused at " : "peak ") + scaled(t.total[t.peak])));
  }

  drawMarker() {
    const x = this.x(this.axis.at(this.cursor) + (this.axis.byTime ? 0 : 0.5));
    const seen = x >= LEFT && x <= LEFT + this.width;
    fill(this.marker, {x1: x, x2: x, visibility: seen ? "visible" : "hidden"}, []);
  }

  /* All of the run, small, and which part of it is shown above. */
  drawStrip() {
    const {t, width, axis} = this, n = Math.max(1, Math.round(width / 2));
    const part = this.to - this.from < axis.end * 0.999;
    this.strip.classList.toggle("off", !part);
    if (!part) return;
    this.strip.setAttribute("viewBox", `0 0 ${width + LEFT + RIGHT} ${STRIP}`);
    const y = i => (STRIP - 1 - (STRIP - 3) * t.total[i] / (t.highest || 1)).toFixed(1);
    const place = at => LEFT + width * at / axis.end;
    replace(this.strip, svg("path", {class: "all", d: areaPath(columnsOf(t, axis, 0, axis.end, n), width, y,
      () => String(STRIP - 1))}),
    svg("rect", {class: "window", x: place(this.from), width: Math.max(3, place(this.to) - place(this.from)),
      y: 0.5, height: STRIP - 1}));
  }

  /* ---- the chosen instant ---- */

  choose(event, quietly) {
    this.cursor = Math.max(0, Math.min(this.t.events.length - 1, event));
    this.describe();
    const at = this.axis.at(this.cursor), length = this.to - this.from;
    if (at < this.from || at >= this.to) this.move(at - length / 2, length);
    else this.drawMarker();
    if (!quietly) this.options.chosen(this.cursor);
  }

  describe() {
    const i = this.cursor;
    fill(this.frame, {"aria-valuenow": i, "aria-valuetext":
      `event ${thousands(i)}, ${scaled(this.t.total[i])} allocated, ${placeText(this.t, i)}`}, []);
  }

  showTip(event, clientX) {
    const {t} = this, by = sumsAt(t, event), x = this.x(this.axis.at(event) + (this.axis.byTime ? 0 : 0.5));
    fill(this.hover, {x1: x, x2: x, visibility: "visible"}, []);
    replace(this.tip, h("p", {class: "tip-head"}, h("b", null, scaled(t.total[event])), " at event " + thousands(event)),
      h("p", null, placeText(t, event)), h("p", null, this.change(event)),
      h("table", null, CATEGORY_NAMES.filter(name => by[name]).reverse().map(name =>
        h("tr", null, h("td", null, swatch(name), CATEGORIES[name]), h("td", {class: "n"}, scaled(by[name]))))));
    this.tip.hidden = false;
    const {left, width} = this.frame.getBoundingClientRect(), place = clientX - left;
    const right = place > width / 2;
    this.tip.style.left = right ? "auto" : place + 14 + "px";
    this.tip.style.right = right ? width - place + 14 + "px" : "auto";
  }

  change(event) {
    const e = this.t.events[event], s = this.t.storages.get(e.storage);
    if (e.kind === "alloc") return "+ " + scaled(e.allocated) + " of " + CATEGORIES[e.category];
    if (e.kind === "free" && s) return MINUS + " " + scaled(s.allocated) + " of " + CATEGORIES[s.changes.at(-1)[1]];
    if (e.kind === "recategory" && s) return scaled(s.allocated) + " become " + CATEGORIES[e.category];
    return scaled(e.allocated) + " of " + CATEGORIES[e.category] + " refused";
  }

  hideTip() {
    this.tip.hidden = true;
    if (this.hover) this.hover.setAttribute("visibility", "hidden");
  }

  /* ---- hands ---- */

  toolbar() {
    const {t} = this, pick = f => () => (f(), this.draw());
    const button = (text, label, f) => h("button", {type: "button", "aria-label": label, title: label, onclick: f}, text);
    return h("div", {class: "toolbar"},
      this.steps = t.steady > 0 && choice("Shown", [["0", "both steps"], ["1", "first step"], ["2", "second step"]], "0",
        step => pick(() => this.showStep(Number(step)))()),
      t.nanoseconds && choice("Along the x axis", [["event", "by event"], ["time", "by time"]], "event",
        value => this.byTime(value === "time")),
      h("span", {class: "choice"}, button("+", "Zoom in", () => this.zoom(0.5, this.around())),
        button(MINUS, "Zoom out", () => this.zoom(2, this.around())),
        button("all", "Show all events", pick(() => this.whole())),
        button("peak", "Choose the peak", () => this.choose(this.t.peak))));
  }

  listen() {
    const f = this.frame;
    let down = null; /* where a press began */
    f.addEventListener("pointerdown", e => {
      if (e.button) return;
      down = {x: e.clientX, drags: false};
      f.setPointerCapture(e.pointerId);
    });
    f.addEventListener("pointermove", e => {
      const event = this.eventAt(e.clientX);
      this.showTip(event, e.clientX);
      if (!down) return;
      down.drags = down.drags || Math.abs(e.clientX - down.x) > 4;
      if (!down.drags) return;
      if (e.pointerType === "touch") return void this.choose(event);
      const {left} = f.getBoundingClientRect(), ends = [e.clientX - left, down.x - left];
      const a = Math.max(LEFT, Math.min(...ends)), b = Math.min(LEFT + this.width, Math.max(...ends));
      fill(this.band, {x: a, width: Math.max(0, b - a)}, []);
    });
    f.addEventListener("pointerup", e => {
      if (!down) return;
      const from = this.eventAt(Math.min(e.clientX, down.x)), to = this.eventAt(Math.max(e.clientX, down.x));
      const zooms = down.drags && e.pointerType !== "touch";
      down = null;
      this.band.setAttribute("width", 0);
      const start = this.axis.at(from), least = this.axis.byTime ? 1 : 8;
      if (zooms) this.move(start, Math.max(this.axis.at(to + 1) - start, least));
      else this.choose(this.eventAt(e.clientX));
    });
    f.addEventListener("pointercancel", () => { down = null; });
    f.addEventListener("pointerleave", () => this.hideTip());
    f.addEventListener("wheel", e => this.wheel(e), {passive: false});
    f.addEventListener("keydown", e => this.key(e));
    const pan = e => {
      if (!e.buttons) return;
      const {left} = this.strip.getBoundingClientRect(), length = this.to - this.from;
      this.move((e.clientX - left - LEFT) / this.width * this.axis.end - length / 2, length);
    };
    this.strip.addEventListener("pointerdown", pan);
    this.strip.addEventListener("pointermove", pan);
  }

  /* The wheel zooms once the chart has been clicked, or with Ctrl; else the page scrolls. */
  wheel(e) {
    if (!e.ctrlKey && document.activeElement !== this.frame) return;
    e.preventDefault();
    const {left} = this.frame.getBoundingClientRect();
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      this.move(this.from + (this.to - this.from) * e.deltaX / this.width, this.to - this.from);
    } else {
      this.zoom(2 ** (Math.sign(e.deltaY) * 0.35), Math.max(0, Math.min(1, (e.clientX - left - LEFT) / this.width)));
    }
  }

  key(e) {
    const page = Math.max(1, Math.round((this.axis.event(this.to - 1e-9) - this.axis.event(this.from)) / 20));
    const by = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: page, PageDown: -page}[e.key];
    if (by) this.choose(this.cursor + by * (e.shiftKey ? 10 : 1));
    else if (e.key === "Home") this.choose(0);
    else if (e.key === "End") this.choose(this.t.events.length - 1);
    else if (e.key === "+" || e.key === "=") this.zoom(0.5, this.around());
    else if (e.key === "-") this.zoom(2, this.around());
    else if (e.key === "0") this.whole(), this.draw();
    else if (e.key === "p") this.choose(this.t.peak);
    else return;
    e.preventDefault();
  }
}
