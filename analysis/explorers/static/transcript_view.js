// A transcript in a place of its own. Its HTML comes escaped from Python (analysis.html.transcript); here it only
// scrolls: to turns, to what a search found, and to the turn whose tokens are looked at.

function make(tag, classes, text) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  if (text !== undefined) node.textContent = text;
  return node;
}

function render({ model, el }) {
  const root = make("div", "wb-ts");
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  const bar = make("div", "wb-ts-bar");
  const jump = make("select", "wb-ts-jump");
  jump.setAttribute("aria-label", "Go to a turn");
  const before = make("button", "wb-button", "‹ turn");
  const after = make("button", "wb-button", "turn ›");
  const hit = make("button", "wb-button", "next hit");
  const open = make("button", "wb-button", "Open all");
  for (const button of [before, after, hit, open]) button.type = "button";
  before.title = "Previous turn (T)";
  after.title = "Next turn (t)";
  bar.append(jump, before, after, hit, make("span", "wb-ts-space"), open);
  const scroll = make("div", "wb-ts-scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Transcript");
  root.append(bar, scroll);
  el.append(root);

  let opened = false;
  let lastHit = -1;

  const turns = () => [...scroll.querySelectorAll(".wb-msg[data-turn]")];

  function bring(node) {
    if (!node) return;
    for (let around = node.parentElement; around && around !== scroll; around = around.parentElement) {
      if (around.tagName === "DETAILS") around.open = true;
    }
    const box = node.getBoundingClientRect(), home = scroll.getBoundingClientRect();
    scroll.scrollTop += box.top - home.top - 8;
  }

  function mark(node) {
    for (const other of scroll.querySelectorAll(".wb-ts-here")) other.classList.remove("wb-ts-here");
    if (node) node.classList.add("wb-ts-here");
  }

  function step(direction) {
    const home = scroll.getBoundingClientRect().top;
    const tops = turns().map((node) => [node.getBoundingClientRect().top - home, node]);
    const found = direction > 0 ? tops.find(([top]) => top > 12) : tops.filter(([top]) => top < 4).pop();
    if (found) bring(found[1]);
  }

  function nextHit() {
    const hits = [...scroll.querySelectorAll("mark")];
    if (!hits.length) return;
    lastHit = (lastHit + 1) % hits.length;
    bring(hits[lastHit]);
  }

  function openAll() {
    opened = !opened;
    for (const part of scroll.querySelectorAll("details")) part.open = opened;
    open.textContent = opened ? "Close all" : "Open all";
  }

  function show() {
    scroll.innerHTML = model.get("html");
    scroll.scrollTop = 0;
    lastHit = -1;
    opened = false;
    open.textContent = "Open all";
    const known = model.get("jumps");
    jump.replaceChildren(new Option(known.length === 1 ? "1 turn" : `${known.length} turns`, ""));
    for (const [turn, label] of known) jump.append(new Option(label, String(turn)));
    jump.disabled = before.disabled = after.disabled = !known.length;
    const hits = scroll.querySelectorAll("mark").length;
    hit.hidden = !hits;
    hit.textContent = `next of ${hits} hit${hits === 1 ? "" : "s"}`;
    if (hits) nextHit();
    focus();
  }

  function focus() {
    const turn = model.get("focus");
    const node = turn < 0 ? null : scroll.querySelector(`.wb-msg[data-turn="${turn}"]`);
    mark(node);
    if (node) bring(node);
  }

  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = scroll.clientHeight * 0.9;
    const moves = {
      t: () => step(1), T: () => step(-1), n: nextHit, o: openAll,
      ArrowDown: () => { scroll.scrollTop += 40; }, ArrowUp: () => { scroll.scrollTop -= 40; },
      PageDown: () => { scroll.scrollTop += page; }, PageUp: () => { scroll.scrollTop -= page; },
      Home: () => { scroll.scrollTop = 0; }, End: () => { scroll.scrollTop = scroll.scrollHeight; },
    };
    if (!moves[event.key]) return;
    moves[event.key]();
    event.preventDefault();
    event.stopPropagation(); // the notebook has plans of its own for these keys
  }

  scroll.addEventListener("keydown", keys);
  scroll.addEventListener("click", (event) => {
    const head = event.target.closest ? event.target.closest(".wb-turn") : null;
    const message = head ? head.closest(".wb-msg[data-turn]") : null;
    if (message) model.send({ type: "turn", turn: Number(message.dataset.turn) });
  });
  jump.addEventListener("change", () => {
    if (jump.value !== "") bring(scroll.querySelector(`.wb-msg[data-turn="${jump.value}"]`));
    jump.value = "";
  });
  before.addEventListener("click", () => step(-1));
  after.addEventListener("click", () => step(1));
  hit.addEventListener("click", nextHit);
  open.addEventListener("click", openAll);
  function heard(message) {
    if (message.type !== "reveal") return;
    // The tab that it is in may have been hidden until now: where it is out of sight, its tabs stand for it.
    requestAnimationFrame(() => {
      const place = root.offsetParent ? root : root.closest(".widget-tab");
      if (place) place.scrollIntoView({ block: "center" });
    });
  }

  const handlers = [["change:html", show], ["change:focus", focus], ["msg:custom", heard]];
  for (const [event, handler] of handlers) model.on(event, handler);
  show();
  return () => { for (const [event, handler] of handlers) model.off(event, handler); };
}

export default { render };
