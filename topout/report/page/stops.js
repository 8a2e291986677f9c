// Points of a chart say what they are, to the pointer and to the keyboard; the words are in the page already, as text.
for (const stop of document.querySelectorAll(".stop")) {
  const show = (x, y) => topout.showTooltip(x, y, stop.dataset.words.split("\n").map((line, number) => topout.element(number ? "div" : "b", line)));
  stop.addEventListener("pointermove", (event) => show(event.clientX, event.clientY));
  stop.addEventListener("focus", () => {
    const frame = stop.getBoundingClientRect();
    show(frame.left + frame.width / 2, frame.top + Math.min(frame.height / 2, 60));
  });
  stop.addEventListener("pointerleave", topout.hideTooltip);
  stop.addEventListener("blur", topout.hideTooltip);
}
