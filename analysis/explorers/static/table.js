// A virtual table. Python sorts, searches and writes; here the rows in sight are drawn, from pages that are
// asked for as they come in sight. Text of a run becomes text nodes and titles, never markup.

const ROW = 26; // pixels
const CHUNK = 100; // rows that are asked for at once
const SEARCHED_FROM = 20; // rows; fewer are seen at a glance
const WIDTHS = { number: 1, badge: 1.25, bar: 1, id: 1.05 }; // of a character of each kind, in digits
const LEAST = 8; // characters of a text in the last column
const MARGIN = 8; // rows drawn beyond either edge
const SVG = "http://www.w3.org/2000/svg";

const MISSING = "—";

function make(tag, classes, text) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  if (text !== undefined) node.textContent = text;
  return node;
}

function draw(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function bar(cell, column) {
  const holder = make("span", "wb-bar");
  holder.append(make("span", "wb-bar-text", cell.t));
  const [low, high] = column.domain;
  const picture = draw("svg", { class: "wb-bar-picture", viewBox: "0 0 100 10", preserveAspectRatio: "none" });
  const at = (value) => ((Math.min(Math.max(value, low), high) - low) / (high - low)) * 100;
  const zero = at(0);
  if (cell.x !== null && cell.x !== undefined) {
    const end = at(cell.x);
    picture.append(
      draw("rect", {
        class: cell.x < 0 ? "wb-below" : "wb-above",
        x: Math.min(zero, end), width: Math.abs(end - zero), y: 1, height: 8,
      }),
    );
  }
  picture.append(draw("line", { class: "wb-axis", x1: zero, x2: zero, y1: 0, y2: 10 }));
  holder.append(picture);
  return holder;
}

function strip(cell, column) {
  const values = cell.x;
  const [low, high] = column.domain;
  const width = 12 * values.length;
  const picture = draw("svg", {
    class: "wb-strip", viewBox: `0 0 ${Math.max(width, 12)} 16`, height: 16, width: Math.max(width, 12),
    preserveAspectRatio: "none", role: "img",
  });
  values.forEach((value, place) => {
    const x = place * 12 + 1.5;
    if (value === null) {
      picture.append(draw("circle", { class: "wb-lacking", cx: x + 4.5, cy: 8, r: 1.6 }));
      return;
    }
    const height = 1.5 + 12.5 * Math.min(Math.max((value - low) / (high - low), 0), 1);
    picture.append(draw("rect", { class: "wb-mark", x, width: 9, y: 15 - height, height }));
  });
  const title = draw("title", {});
  title.textContent = cell.f;
  picture.append(title);
  return picture;
}

function dumbbell(cell, column) {
  const [low, high] = column.domain;
  const at = (value) => 4 + ((Math.min(Math.max(value, low), high) - low) / (high - low)) * 112;
  const [from, to] = cell.x;
  const picture = draw("svg", { class: "wb-dumbbell", viewBox: "0 0 120 16", width: 120, height: 16, role: "img" });
  picture.append(draw("line", { class: "wb-scale", x1: 4, x2: 116, y1: 8, y2: 8 }));
  if (from !== null && to !== null) {
    picture.append(draw("rect", {
      class: to < from ? "wb-below" : "wb-above", x: Math.min(at(from), at(to)), width: Math.abs(at(to) - at(from)),
      y: 5.5, height: 5,
    }));
    picture.append(draw("line", { class: "wb-baseline", x1: at(from), x2: at(from), y1: 1, y2: 15 }));
  }
  const dot = from === null ? "wb-dot wb-alone" : "wb-dot"; // a reward that is compared with nothing
  if (to !== null) picture.append(draw("circle", { class: dot, cx: at(to), cy: 8, r: 3.2 }));
  const title = draw("title", {});
  title.textContent = cell.f;
  picture.append(title);
  return picture;
}

function fill(node, cell, column) {
  if (cell === null) {
    node.classList.add("wb-na");
    node.textContent = MISSING;
    return;
  }
  if (typeof cell === "string") {
    node.textContent = cell;
    return;
  }
  if (column.kind === "bar") node.append(bar(cell, column));
  else if (column.kind === "strip") node.append(strip(cell, column));
  else if (column.kind === "dumbbell") node.append(dumbbell(cell, column));
  else if (column.kind === "badge") node.append(make("span", `wb-badge${cell.m ? ` wb-${cell.m}` : ""}`, cell.t));
  else node.textContent = cell.t;
  if (cell.f) node.title = cell.f;
}

let tables = 0;

function render({ model, el }) {
  const id = `wb-table-${++tables}`;
  const root = make("div", "wb-grid");
  const bars = make("div", "wb-grid-bar");
  const caption = make("span", "wb-grid-caption");
  const counted = make("span", "wb-grid-count");
  counted.setAttribute("role", "status");
  const search = make("input", "wb-grid-search");
  search.type = "search";
  search.placeholder = "Search";
  search.title = "Words that a row must all have; column:word, column<0.5, column=3; -word excludes";
  search.setAttribute("aria-label", "Search in the table");
  bars.append(caption, counted, search);
  const problem = make("div", "wb-error");
  problem.setAttribute("role", "alert");
  const view = make("div", "wb-grid-view");
  view.tabIndex = 0;
  view.setAttribute("role", "grid");
  const header = make("div", "wb-grid-head");
  header.setAttribute("role", "row");
  const body = make("div", "wb-grid-body");
  const empty = make("div", "wb-grid-empty wb-muted");
  view.append(header, body, empty);
  root.append(bars, problem, view);
  el.append(root);

  let columns = [];
  let rows = new Map(); // index in the order -> {place, cells}
  let asked = new Set(); // chunks on their way
  let drawn = new Map(); // index -> element
  let selected = new Set();
  let cursor = -1;
  let anchor = -1;
  let timer = 0;
  let frame = 0;
  let hidden = false;

  const total = () => model.get("total");
  const version = () => model.get("page").version;
  const sightRows = () => Math.max(1, Math.floor((view.clientHeight - header.offsetHeight) / ROW));

  function heads() {
    columns = model.get("head");
    const sort = model.get("sort");
    const focused = header.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    header.replaceChildren();
    const wide = columns.map((c) => c.width * (WIDTHS[c.kind] || 0.9) + 2);
    const tracks = wide.map((ch) => `${ch}ch`);
    const last = columns.length - 1;
    if (last >= 0 && columns[last].kind === "text") { // it takes the room that is left
      wide[last] = Math.min(columns[last].width, LEAST);
      tracks[last] = `minmax(${wide[last]}ch, 1fr)`;
    }
    root.style.setProperty("--wb-tracks", tracks.join(" "));
    root.style.setProperty("--wb-least", `${wide.reduce((sum, ch) => sum + ch, 0)}ch`);
    columns.forEach((column, place) => {
      const cell = make("div", `wb-grid-th wb-kind-${column.kind}`);
      cell.setAttribute("role", "columnheader");
      cell.setAttribute("aria-colindex", String(place + 1));
      const level = sort.findIndex((key) => key[0] === column.name);
      const label = make(column.sortable ? "button" : "span", "wb-grid-label", column.label);
      label.title = [column.title, column.sortable ? "Sort; with Shift, after the other columns" : ""]
        .filter(Boolean).join("\n");
      label.dataset.name = column.name;
      if (column.sortable) {
        label.addEventListener("click", (event) => sortBy(column, event.shiftKey));
        cell.setAttribute("aria-sort", level < 0 ? "none" : sort[level][1] ? "descending" : "ascending");
      }
      if (level >= 0) {
        const mark = make("span", "wb-grid-arrow", sort[level][1] ? "▼" : "▲");
        if (sort.length > 1) mark.append(make("sub", "", String(level + 1)));
        mark.setAttribute("aria-hidden", "true");
        label.append(mark);
      }
      cell.append(label);
      header.append(cell);
      if (column.name === focused) label.focus();
    });
    view.setAttribute("aria-colcount", String(columns.length));
  }

  function sortBy(column, more) {
    const sort = model.get("sort");
    const now = sort.find((key) => key[0] === column.name);
    const rest = more ? sort.filter((key) => key[0] !== column.name) : [];
    const first = column.kind === "number" || column.kind === "bar"; // numbers descend first, words ascend
    const next = !now ? first : now[1] === first ? !first : null;
    model.set("sort", next === null ? rest : [...rest, [column.name, next]]);
    model.save_changes();
  }

  function adopt(page) {
    if (page.version !== version()) return;
    page.rows.forEach((place, offset) =>
      rows.set(page.start + offset, { place, cells: page.cells[offset] }));
    asked.delete(Math.floor(page.start / CHUNK));
    paint();
  }

  function renew() {
    rows = new Map();
    asked = new Set();
    for (const node of drawn.values()) node.remove();
    drawn = new Map();
    heads();
    size();
    view.scrollTop = 0;
    cursor = model.get("cursor");
    anchor = cursor;
    adopt(model.get("page"));
    if (cursor >= 0) reveal(cursor);
    count();
  }

  function size() {
    const inSight = Math.max(1, Math.min(total(), model.get("rows_in_sight")));
    body.style.height = `${total() * ROW}px`;
    view.style.maxHeight = `${(inSight + 1) * ROW + 3}px`;
    search.hidden = model.get("count") <= SEARCHED_FROM && !model.get("query");
    empty.textContent = total() ? "" : model.get("count") ? "Nothing matches the search." : "No rows.";
    view.setAttribute("aria-rowcount", String(total()));
  }

  function count() {
    const [all, left] = [model.get("count"), total()];
    const number = (n) => n.toLocaleString("en-US");
    const picked = model.get("many") && selected.size > 1 ? `, ${number(selected.size)} picked` : "";
    counted.textContent = (left === all ? `${number(all)} rows` : `${number(left)} of ${number(all)} rows`) + picked;
  }

  function paint() {
    const top = view.scrollTop;
    const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
    const last = Math.min(total(), Math.ceil((top + (view.clientHeight || 400)) / ROW) + MARGIN);
    for (const [index, node] of drawn) {
      if (index < first || index >= last) {
        node.remove();
        drawn.delete(index);
      }
    }
    for (let index = first; index < last; index++) {
      const row = rows.get(index);
      if (!row) ask(Math.floor(index / CHUNK));
      else if (!drawn.has(index)) drawRow(index, row);
    }
    mark();
  }

  function ask(chunk) {
    if (asked.has(chunk)) return;
    asked.add(chunk);
    model.send({ type: "rows", start: chunk * CHUNK, stop: (chunk + 1) * CHUNK, version: version() });
  }

  function drawRow(index, row) {
    const node = make("div", "wb-grid-row");
    node.id = `${id}-${index}`;
    node.setAttribute("role", "row");
    node.setAttribute("aria-rowindex", String(index + 1));
    node.style.transform = `translateY(${index * ROW}px)`;
    columns.forEach((column, place) => {
      const cell = make("div", `wb-grid-td wb-kind-${column.kind}`);
      cell.setAttribute("role", "gridcell");
      fill(cell, row.cells[place], column);
      // The last column takes the room that is left, which may be less than its text needs.
      const room = place === columns.length - 1 ? Math.min(column.width, LEAST) : column.width;
      if (!cell.title && cell.textContent.length > room) cell.title = cell.textContent;
      node.append(cell);
    });
    node.addEventListener("click", (event) => {
      view.focus({ preventScroll: true });
      if (event.shiftKey && anchor >= 0) range(anchor, index);
      else if (event.ctrlKey || event.metaKey) toggle(index);
      else pick(index);
    });
    drawn.set(index, node);
    body.append(node);
  }

  function mark() {
    for (const [index, node] of drawn) {
      const picked = selected.has(rows.get(index).place);
      node.classList.toggle("wb-picked", picked);
      node.classList.toggle("wb-cursor", index === cursor);
      node.setAttribute("aria-selected", String(picked));
    }
    if (cursor >= 0 && drawn.has(cursor)) view.setAttribute("aria-activedescendant", `${id}-${cursor}`);
    else view.removeAttribute("aria-activedescendant");
  }

  function choose(places) {
    selected = new Set(places);
    model.set("selected", places);
    model.save_changes();
    mark();
    count();
  }

  function pick(index) {
    cursor = anchor = index;
    const row = rows.get(index);
    if (row) choose([row.place]);
  }

  function toggle(index) {
    if (!model.get("many")) return pick(index);
    cursor = anchor = index;
    const row = rows.get(index);
    if (!row) return;
    const next = new Set(selected);
    if (!next.delete(row.place)) next.add(row.place);
    choose([...next]);
  }

  function range(from, to) {
    cursor = to;
    if (!model.get("many")) return pick(to);
    model.send({ type: "range", first: from, last: to }); // rows between may not have been sent
    mark();
  }

  function reveal(index) {
    hidden = !view.clientHeight; // in a tab that is not shown, where nothing scrolls
    const top = index * ROW;
    const height = sightRows() * ROW;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + ROW > view.scrollTop + height) view.scrollTop = top + ROW - height;
  }

  function move(to, extend) {
    if (!total()) return;
    const next = Math.min(Math.max(to, 0), total() - 1);
    if (extend && anchor < 0) anchor = Math.max(cursor, 0);
    cursor = next;
    reveal(next);
    paint();
    if (extend) range(anchor, next);
    else anchor = next;
  }

  function keys(event) {
    if (event.target !== view) return;
    const sight = Math.max(1, sightRows() - 1);
    const moves = {
      ArrowDown: cursor + 1, ArrowUp: cursor - 1, PageDown: cursor + sight, PageUp: cursor - sight,
      Home: 0, End: total() - 1,
    };
    if (event.key in moves) move(moves[event.key], event.shiftKey);
    else if (event.key === "Enter" && cursor >= 0) pick(cursor);
    else if (event.key === " " && cursor >= 0) toggle(cursor);
    else if (event.key === "Escape") choose([]);
    else if (event.key === "a" && (event.ctrlKey || event.metaKey) && model.get("many")) model.send({ type: "all" });
    else if (event.key === "/") search.focus();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has plans of its own for these keys
  }

  function searched() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      model.set("query", search.value);
      model.save_changes();
    }, 150);
  }

  const listeners = {
    "change:page": renew,
    "change:sort": heads,
    "change:rows_in_sight": () => { size(); paint(); },
    "change:caption": () => { caption.textContent = model.get("caption"); },
    "change:problem": () => {
      problem.textContent = model.get("problem");
      problem.hidden = !problem.textContent;
    },
    "change:query": () => { if (search.value !== model.get("query")) search.value = model.get("query"); },
    "change:selected": () => { selected = new Set(model.get("selected")); mark(); count(); },
    "change:cursor": () => {
      cursor = model.get("cursor");
      if (cursor >= 0) { anchor = cursor; reveal(cursor); }
      paint();
    },
    "msg:custom": (message) => { if (message.type === "rows") adopt(message); },
  };
  for (const [name, listener] of Object.entries(listeners)) model.on(name, listener);
  view.addEventListener("scroll", () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(paint);
  });
  view.addEventListener("keydown", keys);
  search.addEventListener("input", searched);
  search.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "ArrowDown" || event.key === "Enter") { view.focus(); move(Math.max(cursor, 0), false); }
  });
  const resized = new ResizeObserver(() => {
    if (hidden && view.clientHeight && cursor >= 0) reveal(cursor);
    paint();
  });
  resized.observe(view);

  selected = new Set(model.get("selected"));
  search.value = model.get("query");
  for (const name of ["change:caption", "change:problem"]) listeners[name]();
  renew();

  return () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    resized.disconnect();
    for (const [name, listener] of Object.entries(listeners)) model.off(name, listener);
  };
}

export default { render };
