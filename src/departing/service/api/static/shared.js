"use strict";
const $ = id => document.getElementById(id), NS = "http://www.w3.org/2000/svg";
const colour = i => `var(--c${i % 8})`, shade = i => `var(--t${i % 8})`;

// Elements; text is set as text, never as HTML.
function fill(element, attributes, text) {
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  return element;
}
function put(parent, name, attributes, text) {
  const element = fill(document.createElementNS(NS, name), attributes, text);
  parent.append(element);
  return element;
}
function make(name, attributes, ...inside) {
  const element = fill(document.createElement(name), attributes);
  element.append(...inside);
  return element;
}

// Numbers and text.
const short = n => n >= 1e6 ? +(n / 1e6).toPrecision(3) + " M" : n >= 1e4 ? +(n / 1e3).toPrecision(3) + " k" : String(n);
const plain = n => n === 0 ? "0" : Math.abs(n) >= 1e5 || Math.abs(n) < 1e-4 ? n.toExponential(1) : String(+n.toPrecision(3));
function alike(...values) {  // with equally many decimals: three significant digits of the largest
  const most = Math.max(...values.map(Math.abs));
  return most >= 1e5 || most < 1e-4 ? values.map(plain) : values.map(v => v.toFixed(Math.max(0, 2 - Math.floor(Math.log10(most)))));
}
function range(lower, upper) {
  const [low, high] = alike(lower, upper);
  return low === high ? low : `${low} to ${high}`;
}
function percent(share) {
  const p = 100 * share;
  return (p === 0 || p >= 10 ? p.toFixed(0) : p >= 1 ? p.toFixed(1) : p >= .01 ? p.toFixed(2) : "< 0.01") + " %";
}
const DURATIONS = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
function duration(seconds) {  // such as "30 minutes" or "1 day"
  const [unit, name] = DURATIONS.find(([unit]) => seconds >= unit) || DURATIONS[3], n = +(seconds / unit).toPrecision(3);
  return n === 1 ? `1 ${name}` : `${n} ${name}s`;
}
const cut = (text, most) => [...text].length > most ? [...text].slice(0, Math.max(most - 1, 1)).join("") + "…" : text;
function believed(belief) {
  return Object.entries(belief).map(([type, share]) => type + " " + percent(share)).join(", ");
}

// Calls to the service; the key form appears when a key is required.
let key = sessionStorage.getItem("key") || "";
function login(then) {
  $("login").onsubmit = event => {
    event.preventDefault();
    key = $("key").value;
    sessionStorage.setItem("key", key);
    then();
  };
}
async function call(path, body) {
  const headers = key ? {authorization: "Bearer " + key} : {};
  const how = body === undefined ? {headers} : {method: "POST", headers, body: JSON.stringify(body)};
  let answer;
  try { answer = await fetch(path, how); } catch { throw new Error("The service does not respond; retrying."); }
  const locked = answer.status === 401 || (answer.status === 403 && key);
  $("login").hidden = !locked;
  document.body.classList.toggle("locked", locked);
  if (locked) {
    trouble(key ? "This page needs an admin key." : "");
    return null;
  }
  const result = await answer.json();
  if (!answer.ok) throw new Error(result.detail);
  return result;
}
function trouble(message) { $("trouble").hidden = !message; $("trouble").textContent = message || ""; }

// Charts are drawn at the width of their section, so that their text has the page's font size.
function resize(svg, height) {
  const width = Math.max(svg.parentElement.clientWidth - 32, 240);
  svg.replaceChildren();
  svg.removeAttribute("hidden");
  if (svg.nextElementSibling?.matches(".empty")) svg.nextElementSibling.remove();
  fill(svg, {viewBox: `0 0 ${width} ${height}`});
  return width;
}
function onResize(draw) {
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
}
function ticks(from, to, log, most) {
  if (log) {
    const values = [], a = Math.floor(Math.log10(from)), b = Math.ceil(Math.log10(to));
    for (const parts of [[1, 2, 5], [1, 5], [1]]) {
      values.length = 0;
      for (let e = a; e <= b; e++) for (const part of parts) if (part * 10 ** e >= from * .999 && part * 10 ** e <= to * 1.001) values.push(part * 10 ** e);
      if (values.length <= most) return values;
    }
    return values.filter((_, i) => i % Math.ceil(values.length / most) === 0);
  }
  const raw = (to - from) / most, size = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find(s => s * size >= raw * .999) * size;
  const values = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + 1e-9 * step; i++) values.push(i * step);
  return values;
}
// Axes: x and y are {from, to, log, label, text, at}; returns the scales.
function axes(svg, height, x, y) {
  const width = resize(svg, height), left = 46, right = width - 12, top = 24, bottom = height - 38;
  const scale = (axis, a, b) => {
    const f = axis.log ? Math.log : v => v, low = f(axis.from), high = f(axis.to);
    return v => a + (b - a) * (high === low ? .5 : (f(v) - low) / (high - low));
  };
  const X = scale(x, left, right), Y = scale(y, bottom, top);
  for (const v of y.at || ticks(y.from, y.to, y.log, 5)) {
    put(svg, "line", {x1: left, x2: right, y1: Y(v), y2: Y(v), stroke: "var(--line)"});
    put(svg, "text", {x: left - 6, y: Y(v) + 4, "text-anchor": "end"}, (y.text || plain)(v));
  }
  for (const v of x.at || ticks(x.from, x.to, x.log, width / 90)) {
    put(svg, "line", {x1: X(v), x2: X(v), y1: bottom, y2: bottom + 4, stroke: "var(--soft)"});
    const anchor = X(v) > right - 14 ? "end" : "middle";
    put(svg, "text", {x: X(v) + (anchor === "end" ? 10 : 0), y: bottom + 17, "text-anchor": anchor}, (x.text || plain)(v));
  }
  put(svg, "text", {x: 2, y: 12}, y.label);
  put(svg, "text", {x: right, y: height - 5, "text-anchor": "end"}, x.label);
  return {x: X, y: Y, left, right, top, bottom};
}
function line(svg, points, stroke, more) {
  put(svg, "polyline", {points: points.map(p => p.map(v => v.toFixed(1)).join(",")).join(" "), fill: "none", stroke, "stroke-width": 2, "stroke-linejoin": "round", ...more});
}
function nothing(svg, message) {  // text instead of a chart
  svg.setAttribute("hidden", "");
  if (!svg.nextElementSibling?.matches(".empty")) svg.after(make("p", {class: "note empty"}));
  svg.nextElementSibling.textContent = message;
}
function legend(element, entries, kind) {
  element.replaceChildren(...entries.map(([name, paint]) => {
    const mark = make("i", kind ? {class: kind} : {});
    mark.style.background = paint;
    return make("span", {}, mark, name);
  }));
}
// Horizontal bars with the name above: rows of {name, value, text, paint}.
function bars(element, rows, top) {
  element.replaceChildren(...rows.map(row => {
    const bar = make("i", {});
    bar.style.width = 100 * Math.min(row.value / top, 1) + "%";
    bar.style.background = row.paint;
    return make("div", {}, make("div", {class: "what"}, make("span", {}, row.name), make("span", {}, row.text)), make("div", {class: "track"}, bar));
  }));
}

// The policy tree: from left to right on wide pages, as an indented list on narrow ones.
const AFTER = {click: "click", stay: "no click, stays"};
const TIMES = ["", "", " twice", " three times"];
function path(steps) {
  const runs = [];
  for (const step of steps) {
    if (runs.length && runs[runs.length - 1][0] === step) runs[runs.length - 1][1] += 1;
    else runs.push([step, 1]);
  }
  return runs.map(([step, n]) => (step === "click" ? "a click" : "no click") + (TIMES[n] ?? ` ${n} times`)).join(", then ");
}
function policySentence(first) {  // the first category, and the shortest histories after which it changes
  if (first.committed) return `Always show ${first.category}.`;
  const changes = [], queue = [[first, []]];
  let deepest = 1;
  while (queue.length) {
    const [branch, steps] = queue.shift();
    deepest = Math.max(deepest, steps.length + 1);
    for (const child of branch.children || []) {
      const history = [...steps, child.after];
      if (child.category === branch.category) queue.push([child, history]);
      else changes.push(`${child.category} after ${path(history)}`);
    }
  }
  if (!changes.length) return `Show ${first.category} in the first ${deepest} steps, regardless of clicks.`;
  return `Start with ${first.category}; switch to ${changes.slice(0, 3).join("; to ")}${changes.length > 3 ? "; …" : "."}`;
}
function drawTree(svg, first, categories) {
  const paint = branch => colour(Math.max(categories.indexOf(branch.category), 0));
  const depth = branch => 1 + Math.max(0, ...(branch.children || []).map(depth)), levels = depth(first);
  fill(svg, {"aria-label": "Policy tree. " + policySentence(first)});
  const wide = svg.parentElement.clientWidth - 32 >= 140 * levels + 20;
  (wide ? across : indented)(svg, first, levels, paint);
}
function box(svg, branch, x, y, width, height, paint) {
  const group = put(svg, "g", {});
  put(group, "title", {}, `${branch.category}: ${percent(branch.share)} of users; ${believed(branch.belief)}`);
  put(group, "rect", {x, y, width, height, rx: 5, fill: "var(--field)", stroke: paint, "stroke-width": 1.5});
  put(group, "rect", {x, y, width: 6, height, rx: 3, fill: paint});
  let at = x + 6;
  Object.values(branch.belief).forEach((share, i) => {
    const part = (width - 8) * share;
    put(group, "rect", {x: at, y: y + height - 5, width: part, height: 4, fill: shade(i)});
    at += part;
  });
  return group;
}
const ending = branch => branch.committed ? ", always" : branch.children && branch.children.length ? "" : " …";
function across(svg, first, levels, paint) {
  const row = 54, high = 44, leaves = branch => branch.children && branch.children.length ? branch.children.reduce((n, child) => n + leaves(child), 0) : 1;
  const width = resize(svg, leaves(first) * row + 2), step = Math.min((width + 93) / levels, 340), wide = step - 96;
  const place = (branch, level, top) => {
    const x = level * step + 1, y = top + leaves(branch) * row / 2 - high / 2 + 1;
    let next = top;
    for (const child of branch.children || []) {
      const [tx, ty] = place(child, level + 1, next);
      next += leaves(child) * row;
      put(svg, "path", {d: `M${x + wide},${y + high / 2} C${x + wide + 30},${y + high / 2} ${tx - 60},${ty} ${tx - 2},${ty}`, fill: "none", stroke: "var(--soft)",
        "stroke-width": Math.max(1, 6 * child.share).toFixed(1), opacity: .6, "stroke-dasharray": child.after === "click" ? "none" : "5 4"});
      put(svg, "text", {x: tx - 5, y: ty + (child === branch.children[0] ? -7 : 17), "text-anchor": "end"}, AFTER[child.after]);
    }
    const group = box(svg, branch, x, y, wide, high, paint(branch));
    put(group, "text", {x: x + 12, y: y + 17, class: "strong"}, cut(branch.category, Math.floor((wide - 14) / 7.5)));
    put(group, "text", {x: x + 12, y: y + 33}, percent(branch.share) + (wide > 110 && level === 0 ? " of users" : "") + ending(branch));
    return [x, y + high / 2];
  };
  place(first, 0, 0);
}
function indented(svg, first, levels, paint) {
  const rows = [], walk = (branch, level, parent) => { const at = rows.push({branch, level, parent}) - 1; (branch.children || []).forEach(child => walk(child, level + 1, at)); };
  walk(first, 0, -1);
  const row = 50, high = 42, indent = 16, width = resize(svg, rows.length * row);
  rows.forEach(({branch, level, parent}, i) => {
    const x = level * indent + 1, y = i * row + 1;
    if (parent >= 0) put(svg, "path", {d: `M${x - indent + 7},${parent * row + high + 1} V${y + high / 2} H${x}`, fill: "none", stroke: "var(--soft)", "stroke-dasharray": branch.after === "click" ? "none" : "4 3"});
    const group = box(svg, branch, x, y, width - x - 2, high, paint(branch));
    put(group, "text", {x: x + 12, y: y + 15}, branch.after ? AFTER[branch.after] : "first");
    put(group, "text", {x: x + 12, y: y + 31, class: "strong"}, cut(branch.category, Math.floor((width - x - 130) / 7.5)));
    put(group, "text", {x: width - 10, y: y + 24, "text-anchor": "end"}, percent(branch.share) + ending(branch));
  });
}
