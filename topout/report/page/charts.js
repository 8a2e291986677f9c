// Reading a value off a chart that is already drawn: the points come from the path itself, so no number is embedded twice.
for (const plot of document.querySelectorAll("svg[data-chart]")) {
  const area = plot.parentElement;
  const { x0, x1, y1 } = plot.dataset;
  const box = plot.viewBox.baseVal;
  const points = plot.querySelector("path.line").getAttribute("d").slice(1).split("L").map((pair) => {
    const [x, y] = pair.split(" ").map(Number);
    return { at: x / box.width, step: Math.round(+x0 + (x / box.width) * (x1 - x0)), ns: (1 - y / box.height) * y1 };
  });
  const cursor = topout.element("div", [], "cursor");
  cursor.hidden = true;
  area.append(cursor);
  area.addEventListener("pointermove", (event) => {
    const frame = area.getBoundingClientRect();
    const place = (event.clientX - frame.left) / frame.width;
    const nearest = points.reduce((best, point) => (Math.abs(point.at - place) < Math.abs(best.at - place) ? point : best));
    cursor.hidden = false;
    cursor.style.left = `${nearest.at * 100}%`;
    const isCut = nearest.ns >= y1 * 0.999;
    const title = topout.element("b", `step ${nearest.step}`);
    topout.showTooltip(event.clientX, event.clientY, [title, ` ${isCut ? "at least " : ""}${topout.duration(nearest.ns)}`]);
  });
  area.addEventListener("pointerleave", () => { cursor.hidden = true; topout.hideTooltip(); });
}
