// Rollouts as small multiples over one axis, with a brush over all of them. Numbers come from Python, ready to
// draw; what goes back is the brush: the first and the last rollout, or nothing.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 52;
const RIGHT = 14;
const TITLE = 22; // pixels above each panel
const AXIS = 26; // pixels below the last
const GRIP = 6; // pixels around a brush's edge that take hold of it

function make(tag, classes, text) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  if (text !== undefined) node.textContent = text;
  return node;
}

function draw(parent, tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function colour(name) {
  return `var(--wb-${name})`;
}

function short(value) {
  if (value === null || value === undefined) return "—";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumSignificantDigits: 3 }).replace("-", "−");
}

function ticks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1);
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step || 0);
  return found;
}

function render({ model, el }) {
  const root = make("div", "wb-overview");
  const status = make("div", "wb-overview-bar");
  const said = make("span", "wb-overview-said");
  said.setAttribute("role", "status");
  const clear = make("button", "wb-button", "Clear");
  clear.type = "button";
  clear.title = "All rollouts again (Escape)";
  const legend = make("span", "wb-overview-legend");
  const spoken = make("span", "wb-spoken"); // what the eye reads off the cursor
  spoken.setAttribute("aria-live", "polite");
  status.append(said, clear, spoken, legend);
  const stage = make("div", "wb-overview-stage");
  stage.tabIndex = 0;
  stage.setAttribute("role", "group");
  stage.setAttribute(
    "aria-label",
    "Rollouts. Arrows move the cursor, with Shift they brush; Enter takes one rollout, Escape all.",
  );
  root.append(status, stage);
  el.append(root);

  let svg = null;
  let overlay = null;
  let titles = null;
  let readouts = [];
  let ids = [];
  let brush = null;
  let cursor = null; // place in ids
  let anchor = null;
  let drag = null;
  let timer = 0;
  let width = 0;

  const place = (id) => LEFT + ((id - low()) / (high() - low())) * (width - LEFT - RIGHT);
  const half = () => (ids.length > 1 ? Math.max(0.5, (ids[ids.length - 1] - ids[0]) * 0.012) : 0.5);
  const low = () => (ids.length ? ids[0] - half() : 0);
  const high = () => (ids.length ? ids[ids.length - 1] + half() : 1);
  const idAt = (x) => low() + ((x - LEFT) / (width - LEFT - RIGHT)) * (high() - low());

  function nearest(x) {
    const wanted = idAt(x);
    let best = 0;
    ids.forEach((id, at) => { if (Math.abs(id - wanted) < Math.abs(ids[best] - wanted)) best = at; });
    return best;
  }

  function paint() {
    width = Math.max(320, stage.clientWidth || 800);
    ids = model.get("ids");
    brush = model.get("brush");
    const panels = model.get("panels");
    const height = model.get("panel_height");
    const total = panels.length * (height + TITLE) + AXIS;
    stage.replaceChildren();
    readouts = [];
    if (!ids.length) {
      stage.append(make("p", "wb-muted", "No rollouts."));
      say();
      return;
    }
    svg = draw(stage, "svg", { class: "wb-overview-svg", width, height: total, viewBox: `0 0 ${width} ${total}` });
    titles = document.createElementNS(SVG, "g");
    panels.forEach((panel, row) => drawPanel(panel, row * (height + TITLE) + TITLE, height));
    drawAxis(panels.length * (height + TITLE));
    overlay = draw(svg, "g", { class: "wb-overview-overlay" });
    svg.append(titles); // above the fog of the brush
    drawOverlay();
    say();
  }

  function drawPanel(panel, top, height) {
    const group = draw(svg, "g", {});
    const [bottom, ceiling] = panel.domain;
    const y = (value) => top + height - ((value - bottom) / (ceiling - bottom)) * (height - 2);
    drawTitle(panel, top - 6);
    for (const tick of ticks(bottom, ceiling, height > 60 ? 3 : 2)) {
      draw(group, "line", { class: "wb-gridline", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) });
      draw(group, "text", { class: "wb-tick wb-tick-y", x: LEFT - 7, y: y(tick) + 3.5 }, short(tick));
    }
    if (panel.kind === "bars") drawBars(group, panel, y);
    else for (const series of panel.series) drawLine(group, series, y);
    for (const point of panel.points || []) {
      const [x, at] = [place(point.x), y(point.y)];
      draw(draw(group, "path", {
        class: "wb-overview-point", d: `M${x} ${at - 4}L${x + 4} ${at}L${x} ${at + 4}L${x - 4} ${at}Z`,
        style: `fill:${colour(point.colour)}`,
      }), "title", {}, `${point.label}: ${short(point.y)}`);
    }
    if (panel.note) draw(group, "text", { class: "wb-overview-note", x: (LEFT + width - RIGHT) / 2, y: top + height / 2 + 4 }, panel.note);
  }

  function drawTitle(panel, y) {
    const title = draw(titles, "text", { class: "wb-overview-title", x: LEFT, y });
    draw(title, "tspan", {}, panel.label);
    for (const entry of panel.legend) {
      draw(title, "tspan", { dx: 12, class: "wb-overview-swatch", style: `fill:${colour(entry.colour)}` }, entry.mark);
      draw(title, "tspan", { dx: 3, class: "wb-overview-what" }, entry.label);
    }
    draw(title, "title", {}, panel.title);
    readouts.push({ panel, node: draw(titles, "text", { class: "wb-overview-readout", x: width - RIGHT, y }) });
  }

  function drawLine(group, series, y) {
    const runs = []; // stretches without a gap
    let run = [];
    series.y.forEach((value, at) => {
      if (value === null) { if (run.length) runs.push(run); run = []; } else run.push(at);
    });
    if (run.length) runs.push(run);
    const ink = colour(series.colour);
    for (const stretch of runs) {
      if (series.low) {
        const there = stretch.filter((at) => series.low[at] !== null);
        const above = there.map((at) => `${place(series.x[at])} ${y(series.high[at])}`);
        const below = there.map((at) => `${place(series.x[at])} ${y(series.low[at])}`).reverse();
        if (there.length > 1) draw(group, "path", { class: "wb-overview-band", d: `M${[...above, ...below].join("L")}Z`, style: `fill:${ink}` });
      }
      const points = stretch.map((at) => `${place(series.x[at])} ${y(series.y[at])}`);
      draw(group, "path", {
        class: `wb-overview-line${series.thin ? " wb-thin" : ""}`, d: `M${points.join("L")}`, style: `stroke:${ink}`,
      });
      if (series.x.length <= 60 && !series.thin) {
        for (const at of stretch) {
          draw(group, "circle", { cx: place(series.x[at]), cy: y(series.y[at]), r: 1.8, style: `fill:${ink}` });
        }
      }
    }
  }

  function drawBars(group, panel, y) {
    const step = (width - LEFT - RIGHT) / (high() - low());
    const wide = Math.max(1, Math.min(step * 0.7, 22));
    panel.series[0]?.x.forEach((id, at) => {
      let base = 0;
      for (const series of panel.series) {
        const value = series.y[at] || 0;
        if (!value) continue;
        draw(group, "rect", {
          x: place(id) - wide / 2, width: wide, y: y(base + value), height: y(base) - y(base + value),
          style: `fill:${colour(series.colour)}`,
        });
        base += value;
      }
    });
  }

  function drawAxis(y) {
    const group = draw(svg, "g", {});
    draw(group, "line", { class: "wb-axis", x1: LEFT, x2: width - RIGHT, y1: y + 0.5, y2: y + 0.5 });
    const most = Math.floor((width - LEFT - RIGHT) / 70);
    for (const tick of ticks(low(), high(), most).filter((t) => Number.isInteger(t))) {
      draw(group, "line", { class: "wb-axis", x1: place(tick), x2: place(tick), y1: y, y2: y + 4 });
      draw(group, "text", { class: "wb-tick wb-tick-x", x: place(tick), y: y + 16 }, short(tick));
    }
    draw(group, "text", { class: "wb-overview-title wb-tick-y", x: LEFT - 7, y: y + 16 }, "rollout");
  }

  function edges() {
    return [place(brush[0]) - reach(), place(brush[1]) + reach()];
  }

  function reach() {
    return Math.min(place(low() + 0.5) - place(low()), 14);
  }

  function drawOverlay() {
    if (!overlay) return;
    overlay.replaceChildren();
    const bottom = model.get("panels").length * (model.get("panel_height") + TITLE);
    if (brush) {
      const [from, to] = edges();
      const fog = { class: "wb-overview-fog", y: 0, height: bottom };
      draw(overlay, "rect", { ...fog, x: LEFT, width: Math.max(0, from - LEFT) });
      draw(overlay, "rect", { ...fog, x: to, width: Math.max(0, width - RIGHT - to) });
      draw(overlay, "rect", { class: "wb-overview-brush", x: from, width: Math.max(1, to - from), y: 0.5, height: bottom });
      for (const x of [from, to]) draw(overlay, "rect", { class: "wb-overview-grip", x: x - 2, width: 4, y: bottom / 2 - 12, height: 24, rx: 2 });
    }
    if (cursor !== null && cursor < ids.length) {
      const x = place(ids[cursor]);
      draw(overlay, "line", { class: "wb-overview-cursor", x1: x, x2: x, y1: 0, y2: bottom });
      const label = short(ids[cursor]);
      const room = label.length * 7 + 8;
      draw(overlay, "rect", { class: "wb-overview-tag", x: x - room / 2, y: bottom + 4, width: room, height: 17, rx: 2 });
      draw(overlay, "text", { class: "wb-overview-at wb-tick-x", x, y: bottom + 16 }, label);
    }
    for (const { panel, node } of readouts) node.textContent = cursor === null ? "" : panel.readout[cursor] || "";
  }

  function named(id) {
    return model.get("trained").includes(id) ? `Rollout ${id}` : `Evaluation at ${id}`;
  }

  function say() {
    const trained = model.get("trained"); // an evaluation after the last update is no rollout
    const count = trained.filter((id) => brush && id >= brush[0] && id <= brush[1]).length;
    const all = trained.length;
    if (!brush) said.textContent = all ? `All ${all} rollouts` : "";
    else if (!count) said.textContent = brush[0] === brush[1] ? named(brush[0]) : `Evaluations at ${brush[0]} to ${brush[1]}`;
    else said.textContent = `${brush[0] === brush[1] ? `Rollout ${brush[0]}` : `Rollouts ${brush[0]} to ${brush[1]}`}: ${count} of ${all}`;
    const typing = document.activeElement === stage && !drag && cursor !== null && cursor < ids.length;
    spoken.textContent = typing
      ? `${named(ids[cursor])}: ${readouts.map(({ panel }) => `${panel.label} ${panel.readout[cursor] || "missing"}`).join(", ")}`
      : "";
    clear.hidden = !brush;
  }

  function drawLegend() {
    legend.replaceChildren();
    for (const entry of model.get("legend")) {
      const item = make("span", "wb-overview-entry");
      const swatch = make("span", "wb-swatch");
      swatch.style.background = colour(entry.colour);
      item.append(swatch, make("span", "", entry.label));
      legend.append(item);
    }
  }

  // Brushing. The drawing follows at once, Python when the hand rests.

  function setBrush(next, now) {
    brush = next;
    drawOverlay();
    say();
    clearTimeout(timer);
    timer = setTimeout(send, now ? 0 : 120);
  }

  function send() {
    model.set("brush", brush);
    model.save_changes();
  }

  function ordered(a, b) {
    return [ids[Math.min(a, b)], ids[Math.max(a, b)]];
  }

  function pointerX(event) {
    return event.clientX - svg.getBoundingClientRect().left;
  }

  function hold(x) {
    if (!brush) return "new";
    const [from, to] = edges();
    if (Math.abs(x - from) <= GRIP) return "from";
    if (Math.abs(x - to) <= GRIP) return "to";
    return x > from && x < to ? "move" : "new";
  }

  function down(event) {
    if (!ids.length || event.button !== 0) return;
    stage.focus({ preventScroll: true });
    const x = pointerX(event);
    const at = nearest(x);
    const kind = hold(x);
    drag = { kind, start: at, moved: false, x, brush };
    if (kind === "from") drag.start = ids.indexOf(brush[1]);
    if (kind === "to") drag.start = ids.indexOf(brush[0]);
    stage.setPointerCapture(event.pointerId);
    event.preventDefault();
  }

  function moved(event) {
    if (!ids.length || !svg) return;
    const x = pointerX(event);
    const at = nearest(x);
    if (!drag) {
      stage.style.cursor = { from: "ew-resize", to: "ew-resize", move: "grab", new: "crosshair" }[hold(x)];
      if (cursor !== at) { cursor = at; drawOverlay(); say(); }
      return;
    }
    if (Math.abs(x - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    cursor = at;
    if (drag.kind === "move") {
      const first = ids.indexOf(drag.brush[0]);
      const last = ids.indexOf(drag.brush[1]);
      const by = Math.min(Math.max(at - drag.start, -first), ids.length - 1 - last);
      setBrush([ids[first + by], ids[last + by]]);
    } else setBrush(ordered(drag.start, at));
  }

  function up() {
    if (!drag) return;
    if (!drag.moved) {
      const id = ids[nearest(drag.x)];
      const same = drag.brush && drag.brush[0] === id && drag.brush[1] === id;
      anchor = ids.indexOf(id);
      setBrush(same ? null : [id, id], true);
    } else {
      anchor = brush ? ids.indexOf(brush[0]) : null;
      setBrush(brush, true);
    }
    drag = null;
  }

  function keys(event) {
    if (!ids.length) return;
    const now = cursor === null ? (brush ? Math.max(0, ids.indexOf(brush[1])) : 0) : cursor;
    const moves = {
      ArrowRight: now + 1, ArrowLeft: now - 1, PageDown: now + 10, PageUp: now - 10, Home: 0, End: ids.length - 1,
    };
    if (event.key in moves) {
      const next = Math.min(Math.max(moves[event.key], 0), ids.length - 1);
      if (event.shiftKey && (anchor === null || !brush)) anchor = now;
      cursor = next;
      if (event.shiftKey) setBrush(ordered(anchor, next));
      else { drawOverlay(); say(); }
    } else if (event.key === "Enter") {
      cursor = anchor = now;
      setBrush([ids[now], ids[now]], true);
    } else if (event.key === "Escape") {
      anchor = null;
      setBrush(null, true);
    } else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has plans of its own for these keys
  }

  const listeners = {
    "change:panels": paint,
    "change:ids": paint,
    "change:trained": say,
    "change:legend": drawLegend,
    "change:brush": () => { if (!drag) { brush = model.get("brush"); drawOverlay(); say(); } },
  };
  for (const [name, listener] of Object.entries(listeners)) model.on(name, listener);
  stage.addEventListener("pointerdown", down);
  stage.addEventListener("pointermove", moved);
  stage.addEventListener("pointerup", up);
  stage.addEventListener("pointercancel", () => { drag = null; });
  stage.addEventListener("pointerleave", () => { if (!drag && document.activeElement !== stage) { cursor = null; drawOverlay(); say(); } });
  stage.addEventListener("keydown", keys);
  clear.addEventListener("click", () => setBrush(null, true));
  const resized = new ResizeObserver(() => { if (Math.abs((stage.clientWidth || 800) - width) > 1) paint(); });
  resized.observe(stage);
  drawLegend();
  paint();

  return () => {
    clearTimeout(timer);
    resized.disconnect();
    for (const [name, listener] of Object.entries(listeners)) model.off(name, listener);
  };
}

export default { render };
