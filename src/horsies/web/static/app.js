// What pages do with JavaScript: live fragments, ages of times, the theme, the keyboard, selections and confirmations. Each page works without it.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// -- fragments: change only what is different, so that focus, selections, open details and scroll positions stay

const USER_STATE = { DETAILS: ["open"], INPUT: ["checked", "value"], DIALOG: ["open"] };

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || null : null);

function setAttributes(old, wanted) {
  const kept = USER_STATE[old.tagName] ?? [];
  for (const { name, value } of [...wanted.attributes]) {
    if (!kept.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!kept.includes(name) && !wanted.hasAttribute(name)) old.removeAttribute(name);
  }
}

function change(old, wanted) {
  if (old.isEqualNode(wanted) || old.dataset?.keep !== undefined) return;
  // The text of a time is set by this script.
  if (old.tagName === "TIME" && wanted.tagName === "TIME" && old.dateTime === wanted.dateTime) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = wanted.nodeValue;
    return;
  }
  setAttributes(old, wanted);
  changeChildren(old, wanted);
}

function changeChildren(parent, wanted) {
  const isSame = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
  const keyed = new Map();
  const wantedKeys = new Set([...wanted.childNodes].map(keyOf).filter(Boolean));
  for (const child of [...parent.childNodes]) {
    const key = keyOf(child);
    if (key && wantedKeys.has(key) && !keyed.has(key)) keyed.set(key, child);
    else if (key) child.remove();
  }
  let next = parent.firstChild;
  for (const node of [...wanted.childNodes]) {
    const key = keyOf(node);
    // Nodes with keys may have moved; others are matched in order.
    while (!key && next && keyOf(next)) next = next.nextSibling;
    const match = key ? keyed.get(key) : next;
    if (match && isSame(match, node)) {
      if (match === next) next = next.nextSibling;
      else move(parent, match, next);
      change(match, node);
    } else {
      parent.insertBefore(document.importNode(node, true), next);
    }
    if (key) keyed.delete(key);
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
}

function move(parent, node, before) {
  if (parent.moveBefore) {
    parent.moveBefore(node, before);
    return;
  }
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  parent.insertBefore(node, before);
  focused?.focus({ preventScroll: true });
}

function show(element, html) {
  const wanted = document.createElement("template");
  wanted.innerHTML = html;
  changeChildren(element, wanted.content);
  updateTimes(element);
  updateSelections();
  element.dispatchEvent(new CustomEvent("horsies:updated", { bubbles: true }));
}

// -- streams

const outages = new Map();
const RETRY_MS = 5_000;
const HIDDEN_MS = 1_000; // after which a page that nobody sees closes its streams: a browser has six connections for all its pages
const PATIENCE_MS = 3_000; // before a lost connection is mentioned

function updateOutage() {
  const banner = $("#outage");
  const text = [...new Set(outages.values())].filter(Boolean).join(" ");
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
  const sign = $("#live");
  sign.hidden = !streams.length;
  sign.classList.toggle("lost", Boolean(text));
  const state = text ? "Not live" : "Live";
  if (sign.textContent !== state) sign.textContent = state;
}

class Stream {
  constructor(element) {
    this.element = element;
    this.isGone = false;
    this.patience = null;
    this.open();
  }

  open() {
    if (this.source || this.isGone || document.hidden) return;
    clearTimeout(this.retry);
    const source = new EventSource(this.element.dataset.stream);
    this.source = source;
    const names = new Set($$("[data-event]", this.element).concat(this.element).map((each) => each.dataset.event));
    names.delete(undefined);
    for (const name of names) {
      source.addEventListener(name, (event) => {
        for (const each of $$("[data-event]", this.element).concat(this.element)) {
          if (each.dataset.event === name) show(each, event.data);
        }
      });
    }
    source.addEventListener("open", () => this.report(""));
    source.addEventListener("outage", (event) => this.report(event.data && `The database cannot be read: ${event.data}`));
    source.addEventListener("gone", () => {
      this.close();
      this.isGone = true;
      this.report("This does not exist any more. What you see is what it was.");
    });
    source.addEventListener("error", () => {
      // Not set again by the errors of further tries.
      this.patience ??= setTimeout(
        () => this.report("The connection is lost, or this browser has too many pages open, so this page is not up to date. Trying again."),
        PATIENCE_MS);
      if (source.readyState !== EventSource.CLOSED) return; // the browser connects again
      this.close();
      this.retry = setTimeout(() => this.open(), RETRY_MS);
    });
  }

  report(text) {
    this.stopWaiting();
    outages.set(this, text);
    updateOutage();
  }

  close() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.retry);
  }

  end() {
    this.close();
    this.stopWaiting();
  }

  stopWaiting() {
    clearTimeout(this.patience);
    this.patience = null;
  }
}

const streams = [];

function startStreams() {
  for (const element of $$("[data-stream]")) streams.push(new Stream(element));
  updateOutage();
  let hiding;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => streams.forEach((stream) => stream.end()), HIDDEN_MS);
    else streams.forEach((stream) => stream.open());
  });
  addEventListener("pagehide", () => streams.forEach((stream) => stream.end()));
  addEventListener("pageshow", (event) => event.persisted && streams.forEach((stream) => stream.open()));
}

// -- times: the same texts as the filter `age`, by the clock of the server

const skewMs = Number(document.documentElement.dataset.now || Date.now() / 1000) * 1000 - Date.now();
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60]];

function coarse(seconds) {
  if (seconds < 60) return `${Math.floor(seconds / 10) * 10} s`;
  const [unit, size] = UNITS.find(([, each]) => seconds >= each);
  const whole = Math.floor(seconds / size);
  if (unit === "min" || whole >= 10) return `${whole} ${unit}`;
  const [smaller, smallSize] = unit === "h" ? ["min", 60] : ["h", 3_600];
  const rest = Math.floor((seconds % size) / smallSize);
  return rest ? `${whole} ${unit} ${rest} ${smaller}` : `${whole} ${unit}`;
}

function age(text) {
  const seconds = (Date.now() + skewMs - Date.parse(text)) / 1000;
  if (Math.abs(seconds) < 10) return seconds >= 0 ? "just now" : "now";
  return seconds > 0 ? `${coarse(seconds)} ago` : `in ${coarse(-seconds)}`;
}

function updateTimes(root = document) {
  for (const time of $$("time[datetime]", root)) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const text = "clock" in time.dataset ? CLOCK.format(moment) : age(time.dateTime);
    if (time.textContent !== text) time.textContent = text;
    if (!time.dataset.isLocal) {
      time.dataset.isLocal = "yes";
      time.title = FULL.format(moment);
    }
  }
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

// -- charts: the column under the pointer, in words from the table beside them

function startCharts() {
  for (const name of ["pointermove", "pointerleave"]) {
    document.addEventListener(name, (event) => {
      const svg = name === "pointermove" && event.target instanceof Element ? event.target.closest(".plot")?.querySelector("svg") : null;
      const figure = svg?.closest("[data-chart]");
      for (const each of $$("[data-chart]")) if (each !== figure) read(each, null);
      if (!svg) return;
      const box = svg.getBoundingClientRect();
      const columns = svg.viewBox.baseVal.width;
      const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
      read(figure, column >= 0 && column < columns ? column : null);
    }, true);
  }
}

function read(figure, column) {
  const table = $(`[data-of-chart~="${figure.dataset.chart}"]`);
  const row = column === null ? null : table?.tBodies[0].rows[column];
  const names = row ? [...table.tHead.rows[0].cells].map((cell) => cell.textContent.toLowerCase()) : [];
  const shown = (figure.dataset.columns || "").split(" ").filter(Boolean).map(Number);
  const words = row ? shown.map((index) => `${names[index]} ${row.cells[index].textContent}`) : [];
  const text = row ? `${row.cells[0].textContent}: ${words.join(", ")}` : "";
  const output = $(".readout", figure);
  if (output.textContent !== text) output.textContent = text;
  $(".cursor", figure).setAttribute("d", row ? `M${column + 0.5} 0v100` : "");
}

// -- the theme

const THEMES = ["auto", "light", "dark"];

function startTheme() {
  const button = $("#theme");
  const root = document.documentElement;
  const label = () => {
    const theme = root.dataset.theme || "auto";
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = { auto: "Theme of the system", light: "Light theme", dark: "Dark theme" }[theme];
  };
  label();
  button.addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(root.dataset.theme || "auto") + 1) % THEMES.length];
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      if (theme === "auto") localStorage.removeItem("horsies-theme");
      else localStorage.setItem("horsies-theme", theme);
    } catch {
      // It is not remembered.
    }
    label();
  });
}

// -- selections: [data-bulk] holds checkboxes, [data-select-all], [data-selected-count] and what needs a selection

function updateSelections() {
  for (const scope of $$("[data-bulk]")) {
    const boxes = selectable(scope);
    const chosen = boxes.filter((box) => box.checked).length;
    for (const all of $$("[data-select-all]", scope)) {
      all.checked = chosen > 0 && chosen === boxes.length;
      all.indeterminate = chosen > 0 && chosen < boxes.length;
      all.disabled = !boxes.length;
    }
    for (const each of $$("[data-selected-count]", scope)) {
      if (each.textContent !== String(chosen)) each.textContent = chosen;
    }
    for (const each of $$("[data-needs-selection]", scope)) each.disabled = !chosen;
    scope.classList.toggle("has-selection", chosen > 0);
  }
}

const selectable = (scope) => $$("tbody input[type=checkbox]:not([data-select-all])", scope);

function startSelections() {
  let last = null;
  document.addEventListener("click", (event) => {
    const box = event.target;
    const scope = box instanceof HTMLInputElement && box.type === "checkbox" ? box.closest("[data-bulk]") : null;
    if (!scope) return;
    const boxes = selectable(scope);
    if (box.hasAttribute("data-select-all")) {
      for (const each of boxes) each.checked = box.checked;
    } else if (event.shiftKey && boxes.includes(last)) {
      const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((one, other) => one - other);
      for (const each of boxes.slice(from, to + 1)) each.checked = box.checked;
    }
    last = box;
    updateSelections();
  });
  updateSelections();
}

// -- confirmations: of a form, or of the button that sends it

function startConfirmations() {
  const dialog = $("#confirm");
  let asked = null;
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const button = event.submitter;
    const text = button?.dataset.confirm ?? form.dataset.confirm;
    if (text === undefined || asked === button) {
      asked = null;
      return;
    }
    event.preventDefault();
    $("#confirm-text").textContent = text.replace("{selected}", $("[data-selected-count]")?.textContent ?? "");
    const yes = $("#confirm-yes");
    yes.textContent = button?.textContent.trim() || "OK";
    yes.classList.toggle("danger", Boolean(button?.classList.contains("danger")));
    dialog.returnValue = "no";
    dialog.showModal();
    yes.focus();
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "yes") return;
      asked = button;
      form.requestSubmit(button);
    }, { once: true });
  });
  // A second click while the first request is under way would send the form again.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    setTimeout(() => event.submitter && (event.submitter.disabled = true));
  });
  addEventListener("pageshow", (event) => event.persisted && $$("button:disabled").forEach((button) => (button.disabled = false)));
}

// -- the keyboard

const ROWS = "table.list tbody tr, [data-row]";

function startKeyboard() {
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea, [contenteditable]");
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (isGoing) {
      isGoing = false;
      const link = $$("[data-go]").find((each) => each.dataset.go === event.key);
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    const keys = { "/": focusSearch, "?": () => $("#help").showModal(), g: () => (isGoing = true), j: () => step(1), k: () => step(-1), x: select };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function focusSearch() {
  $("#search").focus();
  $("#search").select();
}

const rowLink = (row) => row.querySelector("[data-main], a[href]");

function step(by) {
  const rows = $$(ROWS).filter((row) => rowLink(row) && row.offsetParent);
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, now + by))];
  rowLink(row).focus();
  row.scrollIntoView({ block: "nearest" });
}

function select() {
  document.activeElement.closest(ROWS)?.querySelector("input[type=checkbox]")?.click();
}

// -- small things

function startCopying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = label), 1_500);
  });
}

// Forms whose answer takes long say so.
function startProgress() {
  document.addEventListener("submit", (event) => {
    const hint = event.target.querySelector("[data-progress]");
    if (hint && !event.defaultPrevented) hint.hidden = false;
  });
}

startTheme();
startSelections();
startConfirmations();
startKeyboard();
startCopying();
startCharts();
startProgress();
startStreams();
updateTimes();
setInterval(updateTimes, 5_000);
