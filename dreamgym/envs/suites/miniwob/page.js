// What runs in every page of MiniWoB++ before the page's own scripts.
//
// The page's clock is ours: it stands still between actions, and each action lets it
// run until nothing is due any more (or SETTLE_MS have passed on it), which takes no real
// time. So an animation or a delay is over when the state is read, and equal actions
// lead to equal pages however busy the machine is.
(() => {
  const SETTLE_MS = 3000;
  const MAX_CALLBACKS = 20000;
  const START = Date.UTC(2016, 6, 1, 12);
  const RealDate = Date, realSetTimeout = window.setTimeout;
  let now = START, nextTimer = 1;
  const timers = new Map();

  const addTimer = (call, delay, every, args) => {
    const period = Math.max(Number(delay) || 0, 1);
    const timer = {id: nextTimer++, at: now + period, every: every ? period : 0, call, args};
    timers.set(timer.id, timer);
    return timer.id;
  };
  const removeTimer = (id) => { timers.delete(id); };
  window.setTimeout = (call, delay, ...args) => addTimer(call, delay, false, args);
  window.setInterval = (call, delay, ...args) => addTimer(call, delay, true, args);
  window.clearTimeout = window.clearInterval = removeTimer;
  window.requestAnimationFrame = (call) =>
    addTimer(() => call(now - START), 16, false, []);
  window.cancelAnimationFrame = removeTimer;
  window.performance.now = () => now - START;
  window.Date = class extends RealDate {
    constructor(...args) { args.length ? super(...args) : super(now); }
    static now() { return now; }
  };
  window.alert = window.confirm = window.prompt = () => null;

  // Until a page is begun, which seeds it again: what it draws while it loads.
  let drawn = 1;
  Math.random = () => (drawn = (drawn * 48271) % 2147483647) / 2147483647;

  const due = (end) => {
    let first = null;
    for (const timer of timers.values())
      if (timer.at <= end && (!first || timer.at < first.at)) first = timer;
    return first;
  };
  const settle = () => {
    const end = now + SETTLE_MS;
    for (let count = 0; count < MAX_CALLBACKS; count++) {
      const timer = due(end);
      if (!timer) break;
      now = Math.max(now, timer.at);
      if (timer.every) timer.at = now + timer.every; else timers.delete(timer.id);
      if (typeof timer.call === "function") timer.call(...timer.args);
    }
    now = end;
  };

  // Elements with a listener of clicks are what a user can click.
  const listeners = new WeakMap();
  const add = EventTarget.prototype.addEventListener;
  const remove = EventTarget.prototype.removeEventListener;
  EventTarget.prototype.addEventListener = function (type, listener, options) {
    if (type === "click" && listener) {
      if (!listeners.has(this)) listeners.set(this, new Set());
      listeners.get(this).add(listener);
    }
    return add.call(this, type, listener, options);
  };
  EventTarget.prototype.removeEventListener = function (type, listener, options) {
    if (type === "click") listeners.get(this)?.delete(listener);
    return remove.call(this, type, listener, options);
  };
  // Widgets that can be dragged listen to clicks to swallow that of a drag.
  const clickable = (e) => !e.classList.contains("ui-draggable") && (
    listeners.get(e)?.size > 0 || typeof e.onclick === "function" ||
    e.classList.contains("ui-menu-item"));

  const NOT_THE_TASK = new Set(["reward-display", "sync-task-cover", "click-canvas", "query"]);
  const CONTAINERS = new Set(["wrap", "area"]);
  const nodes = [];
  const numbers = new WeakMap();
  const numberOf = (e) => {
    if (!numbers.has(e)) { numbers.set(e, nodes.length); nodes.push(e); }
    return numbers.get(e);
  };
  const describe = (e) => {
    if (NOT_THE_TASK.has(e.id) || e.tagName === "STYLE" || e.tagName === "SCRIPT") return null;
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    const small = box.width <= 1 || box.height <= 1;
    // Widgets hide texts for screen readers in a box of one pixel.
    if (!e.getClientRects().length || style.visibility === "hidden" ||
        (small && style.overflow === "hidden")) return null;
    const out = {node: numberOf(e), tag: e.tagName.toLowerCase()};
    if (e.id) out.id = e.id;
    if (typeof e.className === "string" && e.className) out.class = e.className;
    if (e !== document.body && !CONTAINERS.has(e.id) && clickable(e)) out.click = true;
    if (style.display.startsWith("inline") || style.display === "table-cell") out.inline = true;
    // The size of an icon is known when its image has come, which may be later.
    if (small && !style.content.startsWith("url(")) out.small = true;
    if (e.disabled) out.disabled = true;
    if (e.labels?.length) out.label = e.labels[0].textContent;
    if (e.placeholder) out.placeholder = e.placeholder;
    if (e instanceof HTMLInputElement) {
      out.type = e.type;
      if (e.type === "checkbox" || e.type === "radio") out.checked = e.checked;
      out.value = e.value;
      if (e.readOnly) out.readonly = true;
    } else if (e instanceof HTMLTextAreaElement) {
      out.value = e.value;
    } else if (e instanceof HTMLSelectElement) {
      out.options = Array.from(e.options, (o) => o.text);
      out.value = Array.from(e.selectedOptions, (o) => o.text).join(", ");
    } else {
      out.children = [];
      for (const child of e.childNodes) {
        if (child instanceof Text) {
          if (child.data.trim()) out.children.push(child.data);
        } else if (child instanceof Element) {
          const description = describe(child);
          if (description) out.children.push(description);
        }
      }
    }
    return out;
  };

  const fire = (e, kind, type, options = {}) =>
    e.dispatchEvent(new kind(type, {bubbles: true, cancelable: true, view: window, ...options}));
  const ACTIONS = {
    click(e) {
      fire(e, MouseEvent, "mouseover");
      fire(e, MouseEvent, "mousedown");
      e.focus?.();
      fire(e, MouseEvent, "mouseup");
      if (e.click) e.click(); else fire(e, MouseEvent, "click");
      return true;
    },
    type(e, text) {
      e.focus();
      const key = {key: text.slice(-1)};
      if (e.disabled || !fire(e, KeyboardEvent, "keydown", key)) return false;
      const before = e.value;
      e.value = text;
      if (e.value !== text) {  // such as a date of another form
        e.value = before;
        return false;
      }
      fire(e, Event, "input");
      fire(e, KeyboardEvent, "keyup", key);
      fire(e, Event, "change");
      return true;
    },
    select(e, text) {
      const option = Array.from(e.options).find((o) => o.text.trim() === text);
      if (!option) return false;
      option.selected = e.multiple ? !option.selected : true;
      fire(e, Event, "input");
      fire(e, Event, "change");
      return true;
    },
  };

  const read = (taken) => JSON.stringify({
    taken,
    ended: Boolean(WOB_DONE_GLOBAL),
    reward: WOB_DONE_GLOBAL ? WOB_RAW_REWARD_GLOBAL : 0,
    tree: describe(document.body),
  });
  window.dreamgym = {
    async begin(seed) {
      if (document.readyState !== "complete")
        await new Promise((resolve) =>
          add.call(window, "load", () => realSetTimeout.call(window, resolve, 0)));
      const style = document.createElement("style");
      style.textContent = "* { transition: none !important; animation: none !important; }";
      document.head.appendChild(style);
      core.EPISODE_MAX_TIME = 2 ** 31;
      Math.seedrandom(seed);
      core.startEpisodeReal();
      settle();
      return JSON.stringify({utterance: core.getUtterance(), page: JSON.parse(read(true))});
    },
    act(verb, node, text) {
      const taken = ACTIONS[verb](nodes[node], text);
      settle();  // what a page refuses may have changed it: a focus can open a dialog
      return read(taken);
    },
  };
})();
