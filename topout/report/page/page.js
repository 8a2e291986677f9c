// What the whole page shares: the choice of theme, the tooltip, and how durations are written. Everything is text, never HTML:
// names inside a run are data.
"use strict";
const topout = {};

topout.duration = (ns) => {
  if (ns >= 120e9) return `${Math.floor(ns / 60e9)} min ${String(Math.floor((ns / 1e9) % 60)).padStart(2, "0")} s`;
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= size) return `${(ns / size).toFixed(ns >= 100 * size ? 0 : ns >= 10 * size ? 1 : 2)}\u202f${unit}`;
  }
  return ns > 0 ? `${Math.round(ns)}\u202fns` : "0";
};

topout.element = (tag, content, className) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...[].concat(content));
  return made;
};

topout.showTooltip = (x, y, content) => {
  const tooltip = document.getElementById("tooltip");
  tooltip.replaceChildren(...content);
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - box.height - 8))}px`;
};

topout.hideTooltip = () => { document.getElementById("tooltip").hidden = true; };

topout.onTheme = [];
{
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const settle = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    topout.onTheme.forEach((redraw) => redraw());
  };
  // a page opened from a file may be refused its storage; the choice then lasts as long as the page
  try { root.dataset.theme = localStorage.getItem("topout-theme") || ""; } catch { root.dataset.theme = ""; }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("topout-theme", root.dataset.theme); } catch { /* see above */ }
    settle();
  });
  dark.addEventListener("change", settle);
  settle();
}
