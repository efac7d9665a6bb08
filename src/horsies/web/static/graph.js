// Draws the graph of a workflow: folds what is alike, lays it out in layers, and keeps the states of its nodes up to date.
"use strict";

(() => {
  const root = document.getElementById("graph");
  if (!root) return;
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 176;
  const HEIGHT = 42;
  const GAP = 14; // between boxes of one layer
  const LAYER_GAP = 64;
  const MIN_FOLDED = 4; // as many alike are drawn one by one
  const MIN_CHAIN = 6;
  const MAX_DRAWN = 4_000; // boxes at the same time
  const SWEEPS = 10;
  const MAX_COLUMNS = 8;
  const SLICE_MS = 30;
  const FAR = 0.42; // below this scale texts cannot be read
  const MAX_SCALE = 3;
  const STATES = { P: "pending", Y: "ready", E: "enqueued", R: "running", C: "completed", F: "failed", S: "skipped" };
  const LETTERS = { PENDING: "P", READY: "Y", ENQUEUED: "E", RUNNING: "R", COMPLETED: "C", FAILED: "F", SKIPPED: "S" };
  const SIGNS = { pending: "○", ready: "◇", enqueued: "◔", running: "▶", completed: "✓", failed: "✕", skipped: "⊘" };
  const WORDS = { P: "wait", Y: "ready", E: "enqueued", R: "running", C: "done", F: "failed", S: "skipped" };
  const number = (value) => value.toLocaleString("en");

  // -- what is drawn: boxes, each for one node or for many that are alike

  let nodes = []; // {name, kind, runs, before, soft, needed, after, forward, backward}
  const unfolded = new Set();
  let isAllUnfolded = false;

  function readNodes(rows) {
    nodes = rows.map(([name, kind, runs, before, soft, needed]) => ({ name, kind, runs, before, soft: new Set(soft), needed, after: [] }));
    nodes.forEach((node, index) => node.before.forEach((other) => nodes[other].after.push(index)));
    // Two nodes are alike if they run the same, after alike ones, and before alike ones. Nodes come after all that they wait for.
    const labels = new Map();
    const label = (text) => labels.get(text) ?? labels.set(text, labels.size).get(text);
    const unique = (values) => [...new Set(values)].sort((one, other) => one - other).join(",");
    const own = nodes.map((node) => `${node.kind}|${node.runs}|${node.needed}|${node.kind === "task" ? "" : node.name}`);
    nodes.forEach((node, index) => {
      node.forward = label(`>${own[index]}|${unique(node.before.map((other) => nodes[other].forward))}`);
    });
    for (let index = nodes.length - 1; index >= 0; index--) {
      nodes[index].backward = label(`<${own[index]}|${unique(nodes[index].after.map((other) => nodes[other].backward))}`);
    }
  }

  function makeBoxes() {
    const groups = new Map();
    nodes.forEach((node, index) => {
      const key = `${node.forward},${node.backward}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(index);
    });
    let boxes = [];
    const boxOf = new Array(nodes.length);
    for (const [key, members] of groups) {
      const isFolded = members.length >= MIN_FOLDED && !isAllUnfolded && !unfolded.has(key);
      for (const part of isFolded ? [members] : members.map((member) => [member])) {
        const box = { key, members: part, isRow: false, before: new Set(), after: new Set(), soft: new Set() };
        boxes.push(box);
        part.forEach((member) => (boxOf[member] = box));
      }
    }
    boxes.sort((one, other) => one.members[0] - other.members[0]);
    nodes.forEach((node, index) => {
      for (const other of node.before) {
        boxOf[index].before.add(boxOf[other]);
        boxOf[other].after.add(boxOf[index]);
        if (node.soft.has(other)) boxOf[index].soft.add(boxOf[other]);
      }
    });
    if (!isAllUnfolded) boxes = foldRows(boxes);
    return boxes;
  }

  // A row is a path of boxes that run the same, each the only one after the one before.
  function foldRows(boxes) {
    const isLink = (box) => box.after.size === 1 && [...box.after][0].before.size === 1;
    const isAlike = (one, other) => one.members.length === 1 && other.members.length === 1 &&
      nodes[one.members[0]].kind === "task" && nodes[other.members[0]].kind === "task" && nodes[one.members[0]].runs === nodes[other.members[0]].runs;
    const gone = new Set();
    for (const first of boxes) {
      if (gone.has(first)) continue;
      const row = [first];
      while (isLink(row.at(-1))) {
        const next = [...row.at(-1).after][0];
        if (gone.has(next) || !isAlike(first, next)) break;
        row.push(next);
      }
      const key = `row ${first.members[0]}`;
      if (row.length < MIN_CHAIN || unfolded.has(key)) {
        if (unfolded.has(key)) row.forEach((box) => gone.add(box)); // not a shorter row that begins within it
        continue;
      }
      row.forEach((box) => gone.add(box));
      gone.delete(first);
      Object.assign(first, { key, isRow: true, members: row.flatMap((box) => box.members), after: row.at(-1).after });
      for (const next of first.after) {
        next.before = new Set([...next.before].map((box) => (box === row.at(-1) ? first : box)));
        next.soft = new Set([...next.soft].map((box) => (box === row.at(-1) ? first : box)));
      }
      row.slice(1).forEach((box) => (box.isGone = true));
    }
    return boxes.filter((box) => !box.isGone);
  }

  // -- the layout: layers by the longest path, an order with few crossings, and places near those of neighbours

  // Long work gives way to what the reader does, a few times a second.
  let sliceEnd = 0;

  async function breathe() {
    if (performance.now() < sliceEnd) return;
    await new Promise((go) => setTimeout(go));
    sliceEnd = performance.now() + SLICE_MS;
  }

  async function makeLayers(boxes) {
    setLevels(boxes);
    const layers = [];
    const put = (vertex) => (layers[vertex.level] ??= []).push(vertex);
    for (const box of boxes) {
      Object.assign(box, { up: [], down: [], tail: null });
      put(box);
    }
    // A long edge passes each layer at a bend; the edges from one box share theirs.
    for (const box of boxes) {
      for (const next of [...box.after].sort((one, other) => one.level - other.level)) {
        let at = box;
        for (let level = box.level + 1; level < next.level; level++) {
          let bend = at.tail;
          if (!bend) {
            bend = { level, up: [at], down: [], tail: null };
            at.tail = bend;
            at.down.push(bend);
            put(bend);
          }
          at = bend;
        }
        at.down.push(next);
        next.up.push(at);
      }
    }
    await orderLayers(layers);
    return layers;
  }

  async function layOut(boxes, layers, isDown) {
    for (const layer of layers) for (const vertex of layer) vertex.size = vertex.members ? (isDown ? WIDTH : HEIGHT) : 2;
    await place(layers);
    // Layers of hundreds are wrapped: the next boxes are in the next column of their layer, and all of the graph is as many times shorter.
    const shapes = Array.from({ length: MAX_COLUMNS }, (_, index) => setPlaces(boxes, layers, isDown, index + 1));
    const best = shapes.reduce((one, other) => (scaleToFit(other) > scaleToFit(one) * 1.1 ? other : one));
    return setPlaces(boxes, layers, isDown, scaleToFit(shapes[0]) < FAR / 2 ? best.columns : 1);
  }

  function setPlaces(boxes, layers, isDown, columns) {
    const step = (isDown ? HEIGHT : WIDTH) + GAP;
    const depth = columns * step - GAP;
    const shape = { isDown, columns, depth, left: Infinity, top: Infinity };
    let [right, bottom] = [-Infinity, -Infinity];
    layers.forEach((layer, level) => {
      let count = 0;
      for (const vertex of layer) {
        const along = vertex.at / columns - vertex.size / 2;
        const across = level * (depth + LAYER_GAP) + (vertex.members ? (count++ % columns) * step : 0);
        [vertex.x, vertex.y] = isDown ? [along, across] : [across, along];
      }
    });
    for (const box of boxes) {
      shape.left = Math.min(shape.left, box.x);
      shape.top = Math.min(shape.top, box.y);
      right = Math.max(right, box.x + WIDTH);
      bottom = Math.max(bottom, box.y + HEIGHT);
    }
    return { ...shape, width: right - shape.left, height: bottom - shape.top };
  }

  function setLevels(boxes) {
    const missing = new Map(boxes.map((box) => [box, box.before.size]));
    const queue = boxes.filter((box) => !box.before.size);
    boxes.forEach((box) => (box.level = 0));
    for (let place = 0; place < queue.length; place++) {
      for (const next of queue[place].after) {
        next.level = Math.max(next.level, queue[place].level + 1);
        missing.set(next, missing.get(next) - 1);
        if (!missing.get(next)) queue.push(next);
      }
    }
    // A box that waits for nothing is beside the first one that waits for it.
    for (const box of queue.toReversed()) {
      if (!box.before.size && box.after.size) box.level = Math.max(0, Math.min(...[...box.after].map((next) => next.level)) - 1);
    }
  }

  async function orderLayers(layers) {
    const number = (layer) => layer.forEach((vertex, place) => (vertex.place = place));
    layers.forEach(number);
    let best = null;
    let least = Infinity;
    for (let sweep = 0; sweep < SWEEPS && least > 0; sweep++) {
      const isForward = sweep % 2 === 0;
      for (let step = 1; step < layers.length; step++) {
        const layer = layers[isForward ? step : layers.length - 1 - step];
        for (const vertex of layer) {
          const near = isForward ? vertex.up : vertex.down;
          vertex.weight = near.length ? near.reduce((sum, other) => sum + other.place, 0) / near.length : vertex.place;
        }
        layer.sort((one, other) => one.weight - other.weight || one.place - other.place);
        number(layer);
        await breathe();
      }
      const crossings = layers.reduce((sum, layer) => sum + countCrossings(layer), 0);
      if (crossings < least) {
        least = crossings;
        best = layers.map((layer) => [...layer]);
      }
    }
    best?.forEach((layer, level) => {
      layers[level] = layer;
      number(layer);
    });
  }

  // The edges from one layer to the next, in order, cross as often as their ends are out of order (counted with a Fenwick tree).
  function countCrossings(layer) {
    const ends = layer.flatMap((vertex) => vertex.down.map((other) => other.place).sort((one, other) => one - other));
    const tree = new Uint32Array(Math.max(0, ...ends.map((end) => end + 2)));
    let crossings = 0;
    ends.forEach((end, before) => {
      let smaller = 0;
      for (let at = end + 1; at > 0; at -= at & -at) smaller += tree[at];
      crossings += before - smaller;
      for (let at = end + 1; at < tree.length; at += at & -at) tree[at]++;
    });
    return crossings;
  }

  async function place(layers) {
    for (const layer of layers) {
      let at = 0;
      for (const vertex of layer) {
        vertex.at = at + vertex.size / 2;
        at += vertex.size + GAP;
      }
      layer.forEach((vertex) => (vertex.at -= at / 2));
    }
    for (let sweep = 0; sweep < SWEEPS; sweep++) {
      const order = sweep % 2 ? layers.toReversed() : layers;
      for (const layer of order) {
        await breathe();
        const last = sweep >= SWEEPS - 2;
        settle(layer, (vertex) => {
          const near = last ? [...vertex.up, ...vertex.down] : sweep % 2 ? vertex.down : vertex.up;
          return near.length ? near.reduce((sum, other) => sum + other.at, 0) / near.length : vertex.at;
        });
      }
    }
  }

  // Move each vertex to where it wants to be, as near as its neighbours let it: those that would overlap form a block with a common offset.
  function settle(layer, wish) {
    const blocks = [];
    let shift = 0;
    layer.forEach((vertex, place) => {
      if (place) shift += (layer[place - 1].size + vertex.size) / 2 + GAP;
      vertex.shift = shift;
      let block = { sum: wish(vertex) - shift, count: 1, first: place };
      while (blocks.length && blocks.at(-1).sum / blocks.at(-1).count > block.sum / block.count) {
        const before = blocks.pop();
        block = { sum: before.sum + block.sum, count: before.count + block.count, first: before.first };
      }
      blocks.push(block);
    });
    blocks.forEach((block, index) => {
      const end = blocks[index + 1]?.first ?? layer.length;
      for (let place = block.first; place < end; place++) layer[place].at = block.sum / block.count + layer[place].shift;
    });
  }

  // -- drawing

  const make = (name, attributes = {}, ...children) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const canvas = document.createElement("canvas").getContext("2d");
  const family = getComputedStyle(document.body).fontFamily;

  function fitted(text, width, font) {
    canvas.font = `${font} ${family}`;
    if (canvas.measureText(text).width <= width) return text;
    let [low, high] = [0, Math.min(text.length, 80)];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (canvas.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
      else high = middle - 1;
    }
    return `${text.slice(0, low)}…`;
  }

  let boxes = [];
  let size = { left: 0, top: 0, width: 1, height: 1 };
  let stage;
  let nearPath;

  let drawing = 0;

  // Returns whether it was drawn: another drawing may have begun since.
  async function draw() {
    const current = ++drawing;
    const next = makeBoxes();
    if (next.length > MAX_DRAWN) {
      refuse(`${number(next.length)} different nodes are too many to be drawn. The table below has all of them.`);
      return false;
    }
    const layers = await makeLayers(next);
    let shape = await layOut(next, layers, false);
    const down = await layOut(next, layers, true);
    if (scaleToFit(down) > scaleToFit(shape) * 1.15) shape = down;
    else shape = await layOut(next, layers, false);
    const lines = { hard: [], soft: [] };
    const heads = [];
    const links = [];
    for (const box of next) {
      for (const other of box.after) drawEdge(shape, box, other, lines[other.soft.has(box) ? "soft" : "hard"], heads);
      links.push(drawBox(box));
      updateBox(box);
      await breathe();
    }
    if (current !== drawing) return false;
    boxes = next;
    size = shape;
    nearPath = make("path", { class: "near" });
    stage = make("g", {},
      make("path", { class: "edges", d: lines.hard.join("") }), make("path", { class: "edges soft", d: lines.soft.join("") }),
      make("path", { class: "heads", d: heads.join("") }), nearPath, ...links);
    root.replaceChildren(make("svg", {}, stage));
    if (boxes.length) boxes[0].link.setAttribute("tabindex", "0");
    updateStates();
    updateTools();
    return true;
  }

  function refuse(text) {
    const note = document.createElement("p");
    note.textContent = text;
    root.replaceChildren(note);
  }

  function drawEdge(size, box, next, lines, heads) {
    const points = [size.isDown ? [box.x + WIDTH / 2, box.y + HEIGHT] : [box.x + WIDTH, box.y + HEIGHT / 2]];
    for (let bend = box.tail; bend && bend.level < next.level; bend = bend.tail) {
      points.push(size.isDown ? [bend.x + 1, bend.y, 0, size.depth] : [bend.x, bend.y + 1, size.depth, 0]);
    }
    const end = size.isDown ? [next.x + WIDTH / 2, next.y - 5] : [next.x - 5, next.y + HEIGHT / 2];
    points.push(end);
    const text = [`M${round(points[0][0])} ${round(points[0][1])}`];
    let [x, y] = points[0];
    for (const [toX, toY, alongX = 0, alongY = 0] of points.slice(1)) {
      const [middleX, middleY] = [round((x + toX) / 2), round((y + toY) / 2)];
      text.push(size.isDown
        ? `C${round(x)} ${middleY} ${round(toX)} ${middleY} ${round(toX)} ${round(toY)}`
        : `C${middleX} ${round(y)} ${middleX} ${round(toY)} ${round(toX)} ${round(toY)}`);
      [x, y] = [toX + alongX, toY + alongY];
      if (alongX || alongY) text.push(`L${round(x)} ${round(y)}`);
    }
    lines.push(text.join(""));
    heads.push(size.isDown ? `M${round(end[0])} ${round(end[1] + 5)}l-4 -7h8z` : `M${round(end[0] + 5)} ${round(end[1])}l-7 -4v8z`);
  }

  const round = (value) => Math.round(value * 10) / 10;

  function nameOf(box) {
    const first = nodes[box.members[0]];
    if (box.members.length === 1) return first.name;
    return `${first.runs || first.name} × ${number(box.members.length)}`;
  }

  function drawBox(box) {
    const first = nodes[box.members[0]];
    const isMany = box.members.length > 1;
    const isOuter = isMany || first.kind !== "task";
    const href = isMany ? `${root.dataset.list}?text=${encodeURIComponent(first.runs)}#nodes` : `${root.dataset.node}${box.members[0]}`;
    box.titleText = make("title");
    box.sign = make("text", { class: "sign", x: 16, y: HEIGHT / 2 + 5 });
    box.subText = make("text", { class: "sub-text", x: 30, y: 32 });
    const parts = isOuter ? make("g", { transform: `translate(1 ${HEIGHT - 4})` }) : null;
    box.parts = parts;
    box.front = make("rect", { class: "box front", width: WIDTH, height: HEIGHT, rx: 6 });
    const title = make("text", { class: "title-text", x: 30, y: 17 });
    title.textContent = fitted(nameOf(box), WIDTH - 38, "600 12px");
    box.link = make("a", { href, transform: `translate(${round(box.x)} ${round(box.y)})`, tabindex: -1 }, box.titleText);
    if (isOuter) box.link.append(make("rect", { class: "box", x: 4, y: 4, width: WIDTH, height: HEIGHT, rx: 6 }));
    box.link.append(box.front, ...(parts ? [parts] : []), box.sign, title, box.subText);
    box.link.box = box;
    return box.link;
  }

  // -- states

  let states = { letters: "", inner: {} };
  let shown = "";

  function readStates() {
    const text = document.querySelector("[data-event=graph]").textContent.trim();
    if (!text || text === shown) return;
    states = JSON.parse(text);
    updateStates();
    shown = text;
  }

  function updateStates() {
    for (const box of boxes) updateBox(box);
  }

  function countStates(box) {
    const counts = {};
    for (const member of box.members) {
      const letter = states.letters[member] ?? "P";
      counts[letter] = (counts[letter] ?? 0) + 1;
    }
    return counts;
  }

  // The state of many is the one that matters most: a failure, then what happens now.
  const mostImportant = (counts) => [..."FRYESPC"].find((letter) => counts[letter] && (letter !== "S" || !counts.P)) ?? "P";

  function updateBox(box) {
    const first = nodes[box.members[0]];
    const isMany = box.members.length > 1;
    const inner = isMany ? undefined : states.inner[box.members[0]];
    const counts = countStates(box);
    const innerCounts = inner ? Object.fromEntries(Object.entries(inner.counts).map(([status, count]) => [LETTERS[status] ?? "P", count])) : null;
    const isPaused = inner?.status === "PAUSED";
    const letter = isMany ? mostImportant(counts) : (states.letters[box.members[0]] ?? "P");
    const text = JSON.stringify([letter, isMany ? counts : innerCounts, isPaused]);
    if (box.text === text) return;
    box.text = text;
    const state = isPaused ? "ready" : (STATES[letter] ?? "pending");
    box.link.setAttribute("class", `node is-${state}`);
    box.sign.textContent = isPaused ? "⏸" : SIGNS[state];
    const kind = first.kind === "map" ? "for each item" : first.kind === "workflow" ? "sub-workflow" : "";
    const described = isMany ? describe(counts) : innerCounts ? describe(innerCounts) : kind || (first.runs !== first.name ? first.runs : state);
    const needed = first.needed && !isMany ? `after ${first.needed}` : "";
    const sub = [isPaused ? "paused" : "", described, needed].filter(Boolean).join(" · ");
    box.subText.textContent = fitted(sub, WIDTH - 38, "11px");
    const what = isMany ? (box.isRow ? "in a row, folded; opens it" : "alike, folded; opens it") : kind || first.runs;
    box.titleText.textContent = [nameOf(box), what, isMany ? describe(counts) : isPaused ? "paused" : state, innerCounts ? describe(innerCounts) : "", needed]
      .filter(Boolean).join(", ");
    if (box.parts) drawParts(box.parts, isMany ? counts : (innerCounts ?? {}));
  }

  const describe = (counts) => [..."CFRESYP"].filter((letter) => counts[letter]).map((letter) => `${number(counts[letter])} ${WORDS[letter]}`).join(", ");

  function drawParts(parts, counts) {
    const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
    let x = 0;
    const drawn = [];
    for (const letter of "CFSR") {
      if (!counts[letter]) continue;
      const width = Math.max(2, ((WIDTH - 2) * counts[letter]) / total);
      drawn.push(make("rect", { class: `part-${STATES[letter]}`, x: round(x), width: round(Math.min(width, WIDTH - 2 - x)), height: 3 }));
      x += width;
    }
    parts.replaceChildren(...drawn);
  }

  // -- moving and zooming

  const view = { x: 0, y: 0, scale: 1, isFitted: true };
  let isPlanned = false;

  function scaleToFit({ width, height }) {
    const margin = 24;
    return Math.min((root.clientWidth - margin) / (width + 6), (root.clientHeight - margin) / (height + 6), 1);
  }

  function show() {
    isPlanned = false;
    if (!stage) return;
    stage.setAttribute("transform", `translate(${round(view.x)} ${round(view.y)}) scale(${view.scale})`);
    stage.classList.toggle("far", view.scale < FAR);
    root.dataset.scale = view.scale.toFixed(4);
  }

  function plan() {
    if (!isPlanned) requestAnimationFrame(show);
    isPlanned = true;
  }

  function fit() {
    view.scale = scaleToFit(size);
    view.x = (root.clientWidth - size.width * view.scale) / 2 - size.left * view.scale;
    view.y = (root.clientHeight - size.height * view.scale) / 2 - size.top * view.scale;
    view.isFitted = true;
    plan();
  }

  function zoom(factor, x = root.clientWidth / 2, y = root.clientHeight / 2) {
    const scale = Math.min(MAX_SCALE, Math.max(scaleToFit(size) / 2, view.scale * factor));
    view.x = x - ((x - view.x) * scale) / view.scale;
    view.y = y - ((y - view.y) * scale) / view.scale;
    view.scale = scale;
    view.isFitted = false;
    plan();
  }

  function move(x, y) {
    view.x += x;
    view.y += y;
    view.isFitted = false;
    plan();
  }

  function center(box) {
    view.scale = Math.max(view.scale, 0.8);
    view.x = root.clientWidth / 2 - (box.x + WIDTH / 2) * view.scale;
    view.y = root.clientHeight / 2 - (box.y + HEIGHT / 2) * view.scale;
    view.isFitted = false;
    plan();
  }

  function isVisible(box) {
    const [x, y] = [box.x * view.scale + view.x, box.y * view.scale + view.y];
    return x >= 0 && y >= 0 && x + WIDTH * view.scale <= root.clientWidth && y + HEIGHT * view.scale <= root.clientHeight;
  }

  // -- folding

  const canUnfold = (box) => box.members.length > 1 && boxes.length + box.members.length <= MAX_DRAWN;

  async function unfold(box) {
    unfolded.add(box.key);
    if (!(await draw())) return;
    const opened = boxes.find((each) => each.members.includes(box.members[0]));
    if (view.isFitted) fit();
    else center(opened);
    focusBox(opened, false);
  }

  async function foldAll() {
    unfolded.clear();
    isAllUnfolded = false;
    if (await draw()) fit();
  }

  async function unfoldAll() {
    isAllUnfolded = true;
    if (await draw()) fit();
  }

  const tool = (name) => document.querySelector(`[data-graph=${name}]`);

  function updateTools() {
    const isFolded = boxes.some((box) => box.members.length > 1);
    tool("unfold").hidden = !isFolded;
    tool("unfold").disabled = nodes.length > MAX_DRAWN;
    tool("fold").hidden = !isAllUnfolded && !unfolded.size;
    const drawn = boxes.length === nodes.length ? `${number(nodes.length)} nodes` : `${number(nodes.length)} nodes in ${number(boxes.length)} boxes`;
    document.getElementById("graph-note").textContent = drawn;
  }

  for (const [name, act] of Object.entries({
    in: () => zoom(1.4), out: () => zoom(1 / 1.4), fit, fold: foldAll, unfold: unfoldAll,
  })) tool(name).addEventListener("click", act);

  // -- input

  const pointers = new Map();
  let moved = 0;

  root.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 1) moved = 0;
  });
  root.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    const by = [now[0] - before[0], now[1] - before[1]];
    moved += Math.abs(by[0]) + Math.abs(by[1]);
    if (moved < 4) return; // a click, and not a drag
    pointers.set(event.pointerId, now);
    root.classList.add("is-moving");
    if (!root.hasPointerCapture(event.pointerId)) root.setPointerCapture(event.pointerId);
    if (pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const distance = (one) => Math.hypot(one[0] - other[0], one[1] - other[1]);
      const bounds = root.getBoundingClientRect();
      zoom(distance(now) / Math.max(1, distance(before)), (now[0] + other[0]) / 2 - bounds.left, (now[1] + other[1]) / 2 - bounds.top);
      move(by[0] / 2, by[1] / 2);
    } else if (pointers.size === 1) {
      move(...by);
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    addEventListener(name, (event) => {
      pointers.delete(event.pointerId);
      if (!pointers.size) root.classList.remove("is-moving");
    });
  }
  root.addEventListener("dragstart", (event) => event.preventDefault()); // of a link
  root.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !root.contains(document.activeElement)) return; // the page scrolls
    event.preventDefault();
    const bounds = root.getBoundingClientRect();
    const lines = event.deltaMode ? 16 : 1;
    zoom(Math.exp(Math.max(-60, Math.min(60, -event.deltaY * lines)) / (event.ctrlKey ? 60 : 200)), event.clientX - bounds.left, event.clientY - bounds.top);
  }, { passive: false });
  root.addEventListener("dblclick", (event) => {
    const bounds = root.getBoundingClientRect();
    if (!event.target.closest("a")) zoom(1.8, event.clientX - bounds.left, event.clientY - bounds.top);
  });
  root.addEventListener("click", (event) => {
    const box = event.target.closest("a")?.box;
    if (moved >= 4 && event.detail) event.preventDefault(); // the end of a drag
    else if (box && canUnfold(box) && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      unfold(box);
    }
  });

  function focusBox(box, shouldMove = true) {
    root.querySelector("a[tabindex='0']")?.setAttribute("tabindex", "-1");
    box.link.setAttribute("tabindex", "0");
    box.link.focus({ preventScroll: true });
    if (shouldMove && !isVisible(box)) center(box);
  }

  // The nearest box in a direction; what is beside the way counts more than what is further along it.
  function findNeighbour(box, [dirX, dirY]) {
    let best = null;
    let least = Infinity;
    for (const other of boxes) {
      const along = (other.x - box.x) * dirX + (other.y - box.y) * dirY;
      const aside = Math.abs((other.x - box.x) * dirY) + Math.abs((other.y - box.y) * dirX);
      const distance = along + 2 * aside;
      if (along > 1 && distance < least) [best, least] = [other, distance];
    }
    return best;
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const box = document.activeElement?.box;
    const arrow = ARROWS[event.key];
    if (arrow && box) {
      const next = findNeighbour(box, arrow);
      if (next) focusBox(next);
    } else if (arrow) move(arrow[0] * -60, arrow[1] * -60);
    else if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") fit();
    else if (event.key === "Escape" && box) root.focus();
    else return;
    event.preventDefault();
  });

  // The edges of the box under the pointer, or with the focus.
  for (const [name, isOn] of [["pointerover", true], ["focusin", true], ["pointerout", false], ["focusout", false]]) {
    root.addEventListener(name, (event) => {
      const box = event.target.closest?.("a")?.box;
      if (!box || !nearPath) return;
      const lines = [];
      if (isOn) {
        for (const next of box.after) drawEdge(size, box, next, lines, []);
        for (const before of box.before) drawEdge(size, before, box, lines, []);
      }
      nearPath.setAttribute("d", lines.join(""));
    });
  }

  new ResizeObserver(() => stage && view.isFitted && fit()).observe(root);

  // -- the beginning

  async function start() {
    try {
      const answer = await fetch(root.dataset.nodes, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      readNodes((await answer.json()).nodes);
    } catch (error) {
      refuse(`The graph cannot be read (${error.message}). The table below has all nodes.`);
      return;
    }
    document.addEventListener("horsies:updated", readStates);
    readStates();
    if (await draw()) fit();
  }

  start();
})();
