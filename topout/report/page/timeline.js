// The timeline: every step of every rank on a canvas. One pass over device pixels draws it, whatever the number of steps:
// zoomed out, a pixel column stacks the phases of the time it covers; zoomed in, it shows the phase at its instant.
{
  const source = document.getElementById("timeline-data");
  if (source) startTimeline(JSON.parse(source.textContent));
}

function startTimeline(data) {
  const AXIS = 24, GUTTER = 64, ORDERED_FROM = 7; // CSS pixels; a step must be this wide to show its phases end to end
  const canvas = document.getElementById("timeline-canvas");
  const pen = canvas.getContext("2d");
  const view = document.getElementById("timeline-view");
  const numRanks = data.ranks.length, numSteps = data.steps.length, numPhases = data.phases.length;
  const run = decode(data);
  const whole = { from: run.first, to: run.last };
  let shown = { ...whole }, dragged = null, colours = null, isPending = false;
  let alone = data.phases.indexOf(data.alone); // the one phase shown, or -1 for all
  const rowHeight = () => Math.max(2, Math.min(44, Math.floor(512 / numRanks)));

  function draw() {
    isPending = false;
    colours ||= readColours();
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth, rows = rowHeight() * numRanks;
    canvas.style.height = `${rows + AXIS}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round((rows + AXIS) * ratio);
    const plotWidth = Math.max(1, Math.round((width - GUTTER) * ratio));
    const image = pen.createImageData(plotWidth, Math.max(1, Math.round(rows * ratio)));
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(colours.wash);
    const isOrdered = (width - GUTTER) / stepsShown() >= ORDERED_FROM;
    for (let rank = 0; rank < numRanks; rank++) paintRow(pixels, image, rank, isOrdered);
    pen.putImageData(image, Math.round(GUTTER * ratio), 0);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawLabels(width, rows);
    if (dragged && dragged.mode === "select") drawSelection(rows);
    const steps = numSteps > 1 ? `steps ${stepAt(shown.from)}–${stepAt(shown.to - 1)}, ` : "";
    const scale = alone >= 0 && !isOrdered ? `; ${data.phases[alone]} ${percent(run.scales[alone])} of the time` : "";
    view.textContent = `${steps}${topout.duration(shown.from - whole.from)} to ${topout.duration(shown.to - whole.from)}${scale}`;
  }

  function paintRow(pixels, image, rank, isOrdered) {
    const top = Math.round((rank * image.height) / numRanks);
    let bottom = Math.round(((rank + 1) * image.height) / numRanks);
    if (bottom - top > 9) bottom -= bottom - top > 16 ? 2 : 1;
    const perPixel = (shown.to - shown.from) / image.width;
    const starts = run.edges[rank];
    let step = run.stepAt(rank, shown.from);
    for (let x = 0; x < image.width; x++) {
      const from = shown.from + x * perPixel, middle = from + perPixel / 2;
      if (middle < starts[0] || middle >= starts[numSteps]) continue;
      while (step < numSteps - 1 && starts[step + 1] <= middle) step++;
      if (isOrdered) {
        const phase = run.phaseAt(rank, step, middle);
        const isEdge = starts[step] > from && step > 0, isHidden = alone >= 0 && phase !== alone;
        const colour = isEdge ? colours.paper : isHidden ? colours.faint : colours.phases[phase];
        for (let y = top; y < bottom; y++) pixels[y * image.width + x] = colour;
      } else if (alone >= 0) {
        const { low, high } = run.scales[alone], share = run.mix(rank, from, from + perPixel)[alone];
        const colour = blend(colours.wash, colours.phases[alone], Math.min(1, Math.max(0, (share - low) / (high - low))));
        for (let y = top; y < bottom; y++) pixels[y * image.width + x] = colour;
      } else {
        const mix = run.mix(rank, from, from + perPixel);
        let y = bottom, filled = 0;
        for (let phase = 0; phase < numPhases; phase++) {
          filled += mix[phase];
          const until = Math.max(top, bottom - Math.round(filled * (bottom - top)));
          for (; y > until; y--) pixels[(y - 1) * image.width + x] = colours.phases[phase];
        }
      }
    }
  }

  const percent = ({ low, high }) => `${Math.round(low * 100)}\u202f% (pale) to ${Math.round(high * 100)}\u202f% (strong)`;

  function blend(from, to, share) {
    let mixed = 0xff000000;
    for (const shift of [0, 8, 16]) {
      const low = (from >> shift) & 255, high = (to >> shift) & 255;
      mixed |= Math.round(low + (high - low) * share) << shift;
    }
    return mixed >>> 0;
  }

  function drawLabels(width, rows) {
    pen.font = `12px ${colours.font}`;
    pen.fillStyle = colours.soft;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const every = 2 ** Math.max(0, Math.ceil(Math.log2(18 / rowHeight())));
    for (let rank = 0; rank < numRanks; rank += every) {
      pen.fillText(`rank ${data.ranks[rank]}`, 0, Math.max(6, (rank + 0.5) * rowHeight()));
    }
    pen.textBaseline = "top";
    const span = shown.to - shown.from, rough = span / Math.max(2, (width - GUTTER) / 130);
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    for (let at = Math.ceil((shown.from - whole.from) / tick) * tick; at <= shown.to - whole.from; at += tick) {
      const x = xOf(at + whole.from);
      pen.fillRect(Math.round(x), rows, 1, 4);
      pen.textAlign = x > width - 40 ? "right" : x < GUTTER + 20 ? "left" : "center";
      pen.fillText(at < tick / 2 ? "0" : axisLabel(at, tick), x, rows + 8);
    }
  }

  function axisLabel(ns, tick) {
    const [size, unit] = tick >= 1e8 ? [1e9, "s"] : tick >= 1e5 ? [1e6, "ms"] : [1e3, "µs"];
    return `${(ns / size).toLocaleString("en", { maximumFractionDigits: tick < size ? 1 : 0 })} ${unit}`;
  }

  function drawSelection(rows) {
    const [from, to] = [dragged.from, dragged.to].sort((a, b) => a - b);
    pen.fillStyle = colours.select;
    pen.fillRect(from, 0, to - from, rows);
  }

  const timeOf = (x) => shown.from + ((x - GUTTER) / (canvas.clientWidth - GUTTER)) * (shown.to - shown.from);
  const xOf = (time) => GUTTER + ((time - shown.from) / (shown.to - shown.from)) * (canvas.clientWidth - GUTTER);
  const stepAt = (time) => data.steps[run.stepAt(0, time)];
  const stepsShown = () => run.stepAt(0, shown.to) - run.stepAt(0, shown.from) + 1;

  function show(from, to) {
    const least = Math.max(data.unit * 20, (whole.to - whole.from) / numSteps / 50);
    const span = Math.min(Math.max(to - from, least), whole.to - whole.from);
    const start = Math.min(Math.max((from + to - span) / 2, whole.from), whole.to - span);
    shown = { from: start, to: start + span };
    topout.hideTooltip();
    redraw();
  }

  function zoom(factor, at = (shown.from + shown.to) / 2) {
    const share = (at - shown.from) / (shown.to - shown.from), span = (shown.to - shown.from) * factor;
    const from = at - share * span;
    show(from, from + span);
  }

  function move(share) {
    const by = share * (shown.to - shown.from);
    show(shown.from + by, shown.to + by);
  }

  function redraw() {
    if (!isPending) { isPending = true; requestAnimationFrame(draw); }
  }

  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), all: () => show(whole.from, whole.to),
  };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", ArrowUp: "in", ArrowDown: "out", 0: "all", Home: "all" };

  document.querySelector("#timeline-figure .controls").addEventListener("click", (event) => actions[event.target.dataset.do]?.());
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  canvas.addEventListener("wheel", (event) => {
    // a page that swallows the wheel cannot be scrolled past: only a timeline in use may
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 800);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), timeOf(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeOf(event.offsetX)));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    const mode = event.shiftKey || event.pointerType === "touch" ? "move" : "select";
    dragged = { mode, from: event.offsetX, to: event.offsetX, at: { ...shown } };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragged) return hover(event);
    dragged.to = event.offsetX;
    const by = ((dragged.from - dragged.to) / (canvas.clientWidth - GUTTER)) * (shown.to - shown.from);
    if (dragged.mode === "move") show(dragged.at.from + by, dragged.at.to + by);
    else redraw();
  });
  canvas.addEventListener("pointerup", () => {
    if (!dragged) return;
    const { mode, from, to } = dragged;
    dragged = null;
    if (mode === "select" && Math.abs(to - from) > 5) show(timeOf(Math.min(from, to)), timeOf(Math.max(from, to)));
    else redraw();
  });
  canvas.addEventListener("pointercancel", () => { dragged = null; redraw(); });
  canvas.addEventListener("pointerleave", topout.hideTooltip);

  function hover(event) {
    const rank = Math.floor(event.offsetY / rowHeight()), time = timeOf(event.offsetX), edges = run.edges[rank];
    if (!edges || event.offsetX < GUTTER || time < edges[0] || time >= edges[numSteps]) return topout.hideTooltip();
    const step = run.stepAt(rank, time), length = edges[step + 1] - edges[step];
    const isOrdered = (canvas.clientWidth - GUTTER) / stepsShown() >= ORDERED_FROM;
    const here = isOrdered ? run.phaseAt(rank, step, time) : -1;
    const until = step + 1 < numSteps ? data.steps[step + 1] - 1 : data.last;
    const name = until > data.steps[step] ? `steps ${data.steps[step]}–${until}` : `step ${data.steps[step]}`;
    const table = topout.element("table", data.phases.map((phase, index) => {
      const swatch = topout.element("i", [], `p-${phase}`);
      const cells = [topout.element("td", [swatch, phase]), topout.element("td", topout.duration(run.share(rank, step, index) * length))];
      return topout.element("tr", cells, index === here ? "here" : "");
    }).filter((row, index) => run.share(rank, step, index) > 0));
    const title = [topout.element("b", `rank ${data.ranks[rank]}, ${name}`), ` ${topout.duration(length)}`];
    const from = topout.element("div", `${data.hosts[rank]}, at ${topout.duration(edges[step] - whole.from)}`, "from");
    topout.showTooltip(event.clientX, event.clientY, [...title, from, table]);
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const hex = (name) => style.getPropertyValue(`--${name}`).trim();
    const packed = (name) => {
      const digits = hex(name).slice(1), full = digits.length === 3 ? digits.replace(/./g, "$&$&") : digits, value = parseInt(full, 16);
      return (0xff000000 | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0; // ABGR in memory: RGBA
    };
    return {
      phases: data.phases.map(packed), wash: packed("wash"), faint: packed("faint"), paper: packed("paper"), soft: hex("soft"),
      font: hex("sans"), select: `${hex("accent")}44`,
    };
  }

  // the legend becomes buttons: a phase alone, or again all of them
  const legend = document.getElementById("timeline-legend");
  const buttons = [...legend.children].map((item, phase) => {
    const button = topout.element("button", [...item.childNodes]);
    button.type = "button";
    button.addEventListener("click", () => choose(alone === phase ? -1 : phase));
    item.append(button);
    return button;
  });
  function choose(phase) {
    alone = phase;
    legend.classList.toggle("alone", alone >= 0);
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === alone)));
    redraw();
  }

  topout.onTheme.push(() => { colours = null; redraw(); });
  new ResizeObserver(redraw).observe(canvas.parentElement);
  // paper is white whatever the theme, and printing does not wait for a frame
  matchMedia("print").addEventListener("change", () => { colours = null; draw(); });
  choose(alone);
  draw();
}
