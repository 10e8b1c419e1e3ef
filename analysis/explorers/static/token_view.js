// Tokens of one trace, any number of them. Python sends widths and levels of all tokens as bytes, and texts in
// pages as they come in sight; here lines are broken, and those in sight are drawn. Text becomes text nodes only.

const LINE = 24; // pixels
const MARGIN = 6; // lines drawn beyond either edge
const GUTTER = 7; // characters for the position at the start of a line
const RAIL = 14; // pixels, width of each strip of the minimap
const QUIET = 150; // milliseconds until a moved cursor is told to Python
const KIND_CLASSES = ["", " wb-tok-special", " wb-tok-bytes", " wb-tok-number"];
const TRAINED = 3; // level of the mask

const KEYS = [
  ["← →", "token"], ["↑ ↓", "line"], ["PageUp PageDown", "screen"], ["Home End", "first, last"],
  ["n p", "next, previous trained span"], ["t T", "next, previous turn"], ["1 … 6", "overlay"],
  ["Shift + move", "choose a window"], ["Esc", "let go of it"],
];

function make(tag, classes, text) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  if (text !== undefined) node.textContent = text;
  return node;
}

function bytes(view) {
  if (!view) return new Uint8Array(0);
  if (view instanceof Uint8Array) return view;
  return view.buffer ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength) : new Uint8Array(view);
}

const NUMBERS = new Intl.NumberFormat("en-US"); // made once: toLocaleString makes one each time

function count(number, word) {
  return `${NUMBERS.format(number)} ${word}${number === 1 ? "" : "s"}`;
}

let views = 0;

function render({ model, el }) {
  const name = `wb-tokens-${++views}`;
  const root = make("div", "wb-tv");
  // Keys are ours while the focus is here: JupyterLab's shortcuts would cut cells.
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  const bar = make("div", "wb-tv-bar");
  const overlays = make("div", "wb-tv-overlays");
  overlays.setAttribute("role", "radiogroup");
  overlays.setAttribute("aria-label", "What is laid over the tokens");
  const jumps = make("div", "wb-tv-jumps");
  const turnList = make("select", "wb-tv-turns");
  turnList.setAttribute("aria-label", "Go to a turn");
  const before = make("button", "wb-button", "‹ span");
  before.title = "Previous trained span (p)";
  const after = make("button", "wb-button", "span ›");
  after.title = "Next trained span (n)";
  const place = make("input", "wb-tv-place");
  place.type = "number";
  place.min = "0";
  place.placeholder = "position";
  place.setAttribute("aria-label", "Go to a position");
  for (const button of [before, after]) button.type = "button";
  jumps.append(turnList, before, after, place);
  bar.append(overlays, jumps);
  const legend = make("div", "wb-legend");
  const problem = make("div", "wb-error");
  problem.setAttribute("role", "alert");
  const stage = make("div", "wb-tv-stage");
  const scroll = make("div", "wb-tv-scroll wb-toks");
  scroll.tabIndex = 0;
  scroll.dir = "ltr";
  scroll.setAttribute("role", "region");
  const space = make("div", "wb-tv-space");
  scroll.append(space);
  const map = make("div", "wb-tv-map");
  map.title = "Mask and overlay of the whole trace; click or drag to go there";
  const canvas = make("canvas", "wb-tv-canvas");
  const frame = make("div", "wb-tv-frame");
  map.append(canvas, frame);
  stage.append(scroll, map);
  const status = make("div", "wb-tv-status");
  status.setAttribute("role", "status");
  const help = make("details", "wb-more wb-tv-help");
  help.append(make("summary", "", "keys"));
  const keys = make("dl", "wb-facts");
  for (const [key, what] of KEYS) keys.append(make("dt", "", key), make("dd", "", what));
  help.append(keys);
  const foot = make("div", "wb-tv-foot");
  foot.append(status, help);
  const tip = make("div", "wb-tv-tip");
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  root.append(bar, legend, problem, stage, foot, tip);
  el.append(root);

  let trace = {};
  let total = 0; // tokens
  let cells, breaks, kinds, edges, mask, levels;
  let lines = new Int32Array([0]); // first token of each line, and the end
  let lineOf = new Int32Array(0);
  let glyph = 8; // pixels of one character
  let pages = new Map();
  let asked = new Set();
  let drawn = new Map(); // line -> element
  let cursor = 0;
  let anchor = null;
  let timer = 0;
  let painting = 0;
  let width = 0;
  let height = 0; // pixels of the part in sight; asking the browser after a change would make it lay out all anew
  let closed = false;

  // Layout

  function measure() {
    const probe = make("span", "wb-tok", "0".repeat(50));
    probe.style.visibility = "hidden";
    scroll.append(probe);
    glyph = probe.getBoundingClientRect().width / 50 || 8;
    probe.remove();
    width = scroll.clientWidth || 800;
  }

  function breakLines() {
    const room = Math.max(20 * glyph, width - GUTTER * glyph - 12);
    const starts = [];
    lineOf = new Int32Array(total);
    let used = Infinity;
    for (let token = 0; token < total; token++) {
      const wide = cells[token] * glyph + 1 + (edges[token] ? 3 : 0);
      if (used + wide > room) {
        starts.push(token);
        used = 0;
      }
      used += wide;
      lineOf[token] = starts.length - 1;
      if (breaks[token]) used = Infinity;
    }
    starts.push(total);
    lines = Int32Array.from(starts);
    space.style.height = `${Math.max(1, lines.length - 1) * LINE + 8}px`;
  }

  function lay() {
    measure();
    const top = total ? Math.min(total - 1, lines[Math.min(lines.length - 2, Math.floor(scroll.scrollTop / LINE))] || 0) : 0;
    breakLines();
    for (const node of drawn.values()) node.remove();
    drawn = new Map();
    const wanted = model.get("lines_in_sight");
    height = Math.min(wanted, Math.max(lines.length - 1, 3)) * LINE + 8;
    scroll.style.height = `${height}px`;
    if (total && top) scroll.scrollTop = lineOf[top] * LINE;
    paintMap();
    paint();
  }

  // Pages of text

  function keep(page) {
    if (!page || page.version !== trace.version || !page.texts) return;
    const size = trace.page_size;
    for (let at = 0; at < page.texts.length; at += size) {
      pages.set((page.start + at) / size, {
        texts: page.texts.slice(at, at + size), details: page.details.slice(at, at + size),
      });
    }
    for (let at = 0; at < page.texts.length; at += size) asked.delete((page.start + at) / size);
  }

  function written(token) {
    const page = pages.get(Math.floor(token / trace.page_size));
    return page ? page.texts[token % trace.page_size] : undefined;
  }

  function detailsOf(token) {
    const page = pages.get(Math.floor(token / trace.page_size));
    return page ? page.details[token % trace.page_size] : null;
  }

  function need(first, last) {
    const size = trace.page_size;
    const wanted = [];
    for (let page = Math.floor(first / size); page <= Math.floor(Math.max(first, last - 1) / size); page++) {
      if (!pages.has(page) && !asked.has(page)) wanted.push(page);
    }
    if (!wanted.length) return;
    for (const page of wanted) asked.add(page);
    model.send({ type: "texts", version: trace.version, start: wanted[0] * size, stop: (wanted[wanted.length - 1] + 1) * size });
  }

  // Drawing

  function classes(token) {
    const overlay = current();
    const chosen = anchor !== null && token >= Math.min(anchor, cursor) && token <= Math.max(anchor, cursor);
    return `wb-tok wb-${overlay.scale}-${levels[token] || 0}${KIND_CLASSES[kinds[token]] || ""}` +
      (edges[token] ? " wb-tok-edge" : "") + (token === cursor ? " wb-tok-cursor" : "") + (chosen ? " wb-tok-chosen" : "");
  }

  function drawLine(line) {
    const node = make("div", "wb-tv-line");
    node.style.transform = `translateY(${line * LINE + 4}px)`;
    const first = lines[line], last = lines[line + 1];
    node.append(make("span", "wb-tv-number", String(trace.start + first)));
    for (let token = first; token < last; token++) {
      const text = written(token);
      const span = make("span", classes(token), text === undefined ? "" : text);
      span.style.width = `${cells[token] * glyph}px`;
      span.dataset.token = token;
      node.append(span);
    }
    return node;
  }

  function inSight(top) {
    const first = Math.max(0, Math.floor(top / LINE) - MARGIN);
    const last = Math.min(lines.length - 1, Math.ceil((top + height) / LINE) + MARGIN);
    return [first, last];
  }

  function paint() {
    painting = 0;
    if (closed) return;
    const top = scroll.scrollTop;
    const [first, last] = inSight(top);
    for (const [line, node] of drawn) {
      if (line < first || line >= last) {
        node.remove();
        drawn.delete(line);
      }
    }
    if (total) need(lines[first], lines[last]);
    const added = [];
    for (let line = first; line < last; line++) {
      if (!drawn.has(line)) {
        const node = drawLine(line);
        drawn.set(line, node);
        added.push(node);
      }
    }
    space.append(...added);
    paintFrame(top);
  }

  function soon() {
    if (!painting) painting = requestAnimationFrame(paint);
  }

  function restyle() {
    for (const node of drawn.values()) {
      for (const span of node.querySelectorAll(".wb-tok")) span.className = classes(Number(span.dataset.token));
    }
  }

  function retext() {
    for (const node of drawn.values()) {
      for (const span of node.querySelectorAll(".wb-tok")) {
        const text = written(Number(span.dataset.token));
        if (text !== undefined && span.textContent !== text) span.textContent = text;
      }
    }
  }

  // The minimap: for each row of pixels the level that most of its tokens have

  function paletteOf(scale) {
    const probe = make("span", "");
    scroll.append(probe);
    const found = [];
    for (let level = 0; level < 10; level++) {
      probe.className = `wb-${scale}-${level}`;
      const shade = getComputedStyle(probe).backgroundColor;
      found.push(shade === "rgba(0, 0, 0, 0)" ? null : shade);
    }
    probe.remove();
    return found;
  }

  function paintMap() {
    const sharp = window.devicePixelRatio || 1;
    canvas.width = (2 * RAIL + 3) * sharp;
    canvas.height = Math.max(1, height * sharp);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    if (!pen) return;
    pen.scale(sharp, sharp);
    strip(pen, 0, mask, paletteOf("mask"));
    strip(pen, RAIL + 3, levels, paletteOf(current().scale));
  }

  function strip(pen, left, values, palette) {
    const rows = Math.max(1, Math.floor(height / 2));
    const amount = lines.length - 1;
    const tally = new Uint32Array(16);
    for (let row = 0; row < rows; row++) {
      const low = Math.floor((row / rows) * amount);
      const high = Math.max(low + 1, Math.floor(((row + 1) / rows) * amount));
      if (low >= amount) break;
      tally.fill(0);
      for (let token = lines[low]; token < lines[Math.min(high, amount)]; token++) tally[values[token]]++;
      let best = -1;
      for (let level = 0; level < 16; level++) {
        if (tally[level] && palette[level] && (best < 0 || tally[level] > tally[best])) best = level;
      }
      if (best < 0) continue;
      pen.fillStyle = palette[best];
      const deep = Math.max(2, height / Math.max(amount, rows));
      pen.fillRect(left, amount < rows ? (low / amount) * height : row * 2, RAIL, amount < rows ? height / amount : deep);
    }
  }

  function paintFrame(top) {
    const whole = Math.max(1, (lines.length - 1) * LINE + 8);
    frame.style.top = `${(top / whole) * height}px`;
    frame.style.height = `${Math.max(6, Math.min(1, height / whole) * height)}px`;
    frame.hidden = whole <= height;
  }

  function mapTo(event) {
    const box = canvas.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientY - box.top) / Math.max(1, box.height)));
    scroll.scrollTop = share * ((lines.length - 1) * LINE) - height / 2;
  }

  // Overlays

  function current() {
    const found = (trace.overlays || []).find((overlay) => overlay.name === model.get("overlay"));
    return found || (trace.overlays || [])[0] || { name: "mask", scale: "mask", legend: [], label: "", meaning: "" };
  }

  function showOverlays() {
    overlays.replaceChildren();
    (trace.overlays || []).forEach((overlay, at) => {
      const label = make("label", "wb-tv-choice");
      const radio = make("input", "");
      radio.type = "radio";
      radio.name = name;
      radio.value = overlay.name;
      radio.disabled = !overlay.known;
      radio.checked = overlay.name === current().name;
      radio.addEventListener("change", () => setOverlay(overlay.name));
      label.title = overlay.known ? `${overlay.meaning} (${at + 1})` : `${overlay.meaning} Nothing is known of it here.`;
      label.append(radio, make("span", "", overlay.label));
      overlays.append(label);
    });
    showLegend();
  }

  function showLegend() {
    const overlay = current();
    legend.replaceChildren(make("span", "wb-legend-name", overlay.label));
    const list = make("ul", "");
    for (const [level, text] of overlay.legend) {
      const item = make("li", "");
      item.append(make("span", `wb-level wb-${overlay.scale}-${level}`), document.createTextNode(text));
      list.append(item);
    }
    if (!overlay.known) list.append(make("li", "", total ? "nothing known of these tokens" : "no tokens"));
    legend.append(list);
  }

  function setOverlay(name) {
    const overlay = (trace.overlays || []).find((known) => known.name === name);
    if (!overlay || !overlay.known) return;
    model.set("overlay", name);
    model.save_changes();
  }

  function overlayChanged() {
    levels = bytes((trace.levels || {})[current().name]);
    for (const radio of overlays.querySelectorAll("input")) radio.checked = radio.value === current().name;
    showLegend();
    restyle();
    paintMap();
  }

  // Moving

  function move(token, { extend = false, tell = true } = {}) {
    if (!total) return;
    token = Math.max(0, Math.min(total - 1, token));
    if (extend && anchor === null) anchor = cursor;
    if (!extend) anchor = null;
    cursor = token;
    reveal(token);
    restyle();
    say();
    if (tell) later();
  }

  function reveal(token) {
    const top = lineOf[token] * LINE;
    const now = scroll.scrollTop;
    if (top < now) scroll.scrollTop = Math.max(0, top - LINE);
    else if (top + 2 * LINE > now + height) scroll.scrollTop = top + 2 * LINE + 8 - height;
    paint();
  }

  function centre(token) {
    scroll.scrollTop = Math.max(0, lineOf[token] * LINE - height / 3);
    paint();
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      model.set("cursor", trace.start + cursor);
      model.set("chosen", anchor === null ? [] : [trace.start + Math.min(anchor, cursor), trace.start + Math.max(anchor, cursor) + 1]);
      model.save_changes();
    }, QUIET);
  }

  function vertical(step) {
    const line = lineOf[cursor] + step;
    if (line < 0) return 0;
    if (line >= lines.length - 1) return total - 1;
    const from = lines[lineOf[cursor]];
    let left = 0;
    for (let token = from; token < cursor; token++) left += cells[token];
    let token = lines[line];
    while (token < lines[line + 1] - 1 && left - cells[token] >= 0) left -= cells[token++];
    return token;
  }

  function nextSpan(step) {
    const trained = (token) => mask[token] === TRAINED;
    let token = cursor;
    if (step > 0) {
      while (token < total && trained(token)) token++;
      while (token < total && !trained(token)) token++;
      return token < total ? token : cursor;
    }
    const back = () => { while (token > 0 && trained(token - 1)) token--; };
    back();
    if (token < cursor && trained(cursor)) return token;
    token--;
    while (token >= 0 && !trained(token)) token--;
    if (token < 0) return cursor;
    back();
    return token;
  }

  function nextTurn(step) {
    const starts = (trace.turns || []).map((turn) => turn[0] - trace.start).filter((at) => at >= 0 && at < total);
    const found = step > 0 ? starts.find((at) => at > cursor) : starts.filter((at) => at < cursor).pop();
    return found === undefined ? cursor : found;
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !total) return;
    const screen = Math.max(1, Math.floor(height / LINE) - 1);
    const extend = event.shiftKey && event.key.length > 1;
    const moves = {
      ArrowLeft: () => cursor - 1, ArrowRight: () => cursor + 1, ArrowUp: () => vertical(-1), ArrowDown: () => vertical(1),
      PageUp: () => vertical(-screen), PageDown: () => vertical(screen), Home: () => 0, End: () => total - 1,
    };
    const jumps = { n: () => nextSpan(1), p: () => nextSpan(-1), t: () => nextTurn(1), T: () => nextTurn(-1) };
    if (moves[event.key]) move(moves[event.key](), { extend });
    else if (jumps[event.key]) {
      move(jumps[event.key]());
      centre(cursor);
    } else if (event.key >= "1" && event.key <= "9") setOverlay(((trace.overlays || [])[Number(event.key) - 1] || {}).name);
    else if (event.key === "Escape" && anchor !== null) move(cursor);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // What is said of the token under the cursor and under the pointer

  function say() {
    const details = total ? detailsOf(cursor) : null;
    const parts = details ? details.map(([key, value]) => `${key} ${value}`) : [];
    const text = total ? written(cursor) : undefined;
    if (anchor !== null) parts.unshift(count(Math.abs(anchor - cursor) + 1, "token") + " chosen");
    status.replaceChildren();
    if (text !== undefined) status.append(make("span", "wb-code wb-tv-said", text), document.createTextNode(" "));
    status.append(document.createTextNode(total ? parts.join(" · ") : model.get("note")));
  }

  function point(event) {
    const span = event.target.closest ? event.target.closest(".wb-tok") : null;
    if (!span || !scroll.contains(span)) {
      tip.hidden = true;
      return;
    }
    const token = Number(span.dataset.token);
    const details = detailsOf(token);
    if (!details) return;
    const list = make("dl", "wb-facts");
    for (const [key, value] of details) list.append(make("dt", "", key), make("dd", "", value));
    tip.replaceChildren(make("div", "wb-code wb-tv-said", written(token)), list);
    tip.hidden = false;
    const box = span.getBoundingClientRect(), home = root.getBoundingClientRect();
    const wide = tip.offsetWidth, high = tip.offsetHeight;
    tip.style.left = `${Math.max(0, Math.min(box.left - home.left, home.width - wide))}px`;
    const below = box.bottom - home.top + 4;
    const fits = box.bottom + high + 8 < window.innerHeight;
    tip.style.top = `${fits ? below : Math.max(0, box.top - home.top - high - 4)}px`;
  }

  // From Python

  function open() {
    const started = performance.now();
    trace = model.get("trace") || {};
    total = trace.count || 0;
    cells = bytes(trace.cells);
    breaks = bytes(trace.breaks);
    kinds = bytes(trace.kinds);
    edges = bytes(trace.edges);
    mask = bytes((trace.levels || {}).mask);
    levels = bytes((trace.levels || {})[current().name]);
    pages = new Map();
    asked = new Set();
    anchor = null;
    cursor = Math.max(0, Math.min(total - 1, model.get("cursor") - (trace.start || 0)));
    keep(model.get("page"));
    turnList.replaceChildren(new Option(count((trace.turns || []).length, "turn"), ""));
    (trace.turns || []).forEach(([at, size], number) => turnList.append(new Option(`turn ${number}: ${count(size, "token")}`, String(at))));
    turnList.disabled = !(trace.turns || []).length;
    scroll.setAttribute("aria-label", `${trace.title || "Tokens"}. Keys are listed below.`);
    const spans = mask.some((level) => level === TRAINED);
    before.disabled = after.disabled = !spans;
    place.disabled = !total;
    place.max = String((trace.start || 0) + Math.max(0, total - 1));
    showOverlays();
    scroll.scrollTop = 0;
    lay();
    chosenChanged();
    if (cursor > 0 && anchor === null) centre(cursor);
    say();
    root.dataset.opened = (performance.now() - started).toFixed(1);
  }

  function chosenChanged() {
    const chosen = model.get("chosen");
    if (!chosen.length) {
      if (anchor !== null) {
        anchor = null;
        restyle();
        say();
      }
      return;
    }
    const [first, last] = [chosen[0] - trace.start, chosen[1] - 1 - trace.start];
    if (last < 0 || first >= total) return;
    const same = anchor !== null && Math.min(anchor, cursor) === first && Math.max(anchor, cursor) === last;
    if (same) return;
    anchor = Math.min(total - 1, last);
    cursor = Math.max(0, first);
    centre(cursor);
    restyle();
    say();
  }

  function cursorChanged() {
    const wanted = model.get("cursor") - trace.start;
    if (wanted < 0 || wanted >= total || wanted === cursor) return;
    move(wanted, { tell: false });
    centre(cursor);
  }

  function problemChanged() {
    problem.textContent = model.get("problem");
    problem.hidden = !model.get("problem");
  }

  function receive(message) {
    if (message.type !== "texts" || message.version !== trace.version) return;
    keep(message);
    retext();
    say();
  }

  const themes = new MutationObserver(() => paintMap());
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const repaint = () => paintMap();
  dark.addEventListener("change", repaint);
  const sizes = new ResizeObserver(() => {
    if (scroll.clientWidth && scroll.clientWidth !== width) lay();
  });
  sizes.observe(scroll);

  scroll.addEventListener("scroll", () => { tip.hidden = true; soon(); }, { passive: true });
  root.addEventListener("keydown", (event) => { if (event.target === scroll) onKey(event); });
  scroll.addEventListener("mousedown", (event) => {
    const span = event.target.closest ? event.target.closest(".wb-tok") : null;
    if (!span || event.button !== 0) return;
    event.preventDefault();
    scroll.focus({ preventScroll: true });
    move(Number(span.dataset.token), { extend: event.shiftKey });
  });
  scroll.addEventListener("mousemove", (event) => {
    point(event);
    if (!(event.buttons & 1) || document.activeElement !== scroll) return;
    const span = event.target.closest ? event.target.closest(".wb-tok") : null;
    if (span && Number(span.dataset.token) !== cursor) move(Number(span.dataset.token), { extend: true });
  });
  scroll.addEventListener("mouseleave", () => { tip.hidden = true; });
  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); mapTo(event); });
  map.addEventListener("pointermove", (event) => { if (event.buttons & 1) mapTo(event); });
  turnList.addEventListener("change", () => {
    if (turnList.value === "") return;
    move(Number(turnList.value) - trace.start);
    centre(cursor);
    turnList.value = "";
    scroll.focus({ preventScroll: true });
  });
  after.addEventListener("click", () => { move(nextSpan(1)); centre(cursor); });
  before.addEventListener("click", () => { move(nextSpan(-1)); centre(cursor); });
  place.addEventListener("change", () => {
    if (place.value === "") return;
    move(Number(place.value) - trace.start);
    centre(cursor);
  });

  const handlers = [
    ["change:trace", open], ["change:overlay", overlayChanged], ["change:cursor", cursorChanged],
    ["change:chosen", chosenChanged], ["change:problem", problemChanged], ["change:note", say],
    ["change:lines_in_sight", lay], ["msg:custom", receive],
  ];
  for (const [event, handler] of handlers) model.on(event, handler);
  problemChanged();
  open();

  return () => {
    closed = true;
    for (const [event, handler] of handlers) model.off(event, handler);
    themes.disconnect();
    sizes.disconnect();
    dark.removeEventListener("change", repaint);
    clearTimeout(timer);
    cancelAnimationFrame(painting);
  };
}

export default { render };
