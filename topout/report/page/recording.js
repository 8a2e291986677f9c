// Arrays out of base64, with running sums, so that the mix of any stretch costs two look-ups a phase.
function decode(data) {
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const numSteps = data.steps.length, numPhases = data.phases.length, whole = 2 ** data.bits - 1;
  const ticks = new Uint32Array(bytes(data.edges));
  const raw = bytes(data.shares), shares = data.bits === 16 ? new Uint16Array(raw) : new Uint8Array(raw);
  const edges = [], sums = [];
  for (let rank = 0; rank < data.ranks.length; rank++) {
    const own = Float64Array.from(ticks.subarray(rank * (numSteps + 1), (rank + 1) * (numSteps + 1)), (tick) => tick * data.unit);
    const sum = new Float64Array((numSteps + 1) * numPhases);
    for (let step = 0; step < numSteps; step++) {
      for (let phase = 0; phase < numPhases; phase++) {
        const ns = (shares[(rank * numSteps + step) * numPhases + phase] / whole) * (own[step + 1] - own[step]);
        sum[(step + 1) * numPhases + phase] = sum[step * numPhases + phase] + ns;
      }
    }
    edges.push(own);
    sums.push(sum);
  }
  // the scale of a phase that is shown alone: its shares but for the lowest and the highest twentieth and hundredth
  const scales = data.phases.map((_, phase) => {
    const all = Float32Array.from({ length: data.ranks.length * numSteps }, (_, cell) => shares[cell * numPhases + phase] / whole);
    all.sort();
    const high = Math.max(all[Math.floor((all.length - 1) * 0.99)], 0.04);
    return { low: Math.max(0, Math.min(all[Math.floor((all.length - 1) * 0.05)], high - 0.04)), high };
  });
  const share = (rank, step, phase) => shares[(rank * numSteps + step) * numPhases + phase] / whole;
  const stepAt = (rank, time) => {
    let low = 0, high = numSteps - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (edges[rank][middle] <= time) low = middle; else high = middle - 1;
    }
    return low;
  };
  const phaseAt = (rank, step, time) => {
    const at = (time - edges[rank][step]) / (edges[rank][step + 1] - edges[rank][step]);
    let filled = 0, last = 0;
    for (let phase = 0; phase < numPhases; phase++) {
      const part = share(rank, step, phase);
      if (part > 0) last = phase;
      filled += part;
      if (at < filled) return phase;
    }
    return last;
  };
  // what each phase took until a time, added to or taken from `mixed`
  const mixed = new Float64Array(numPhases);
  const addUntil = (rank, time, sign) => {
    const step = stepAt(rank, time), own = edges[rank], sum = sums[rank];
    const part = Math.min(1, Math.max(0, (time - own[step]) / (own[step + 1] - own[step])));
    for (let phase = 0; phase < numPhases; phase++) {
      const before = sum[step * numPhases + phase];
      mixed[phase] += sign * (before + part * (sum[(step + 1) * numPhases + phase] - before));
    }
  };
  const mix = (rank, from, to) => {
    mixed.fill(0);
    addUntil(rank, to, 1);
    addUntil(rank, from, -1);
    let total = 0;
    for (let phase = 0; phase < numPhases; phase++) total += mixed[phase];
    for (let phase = 0; phase < numPhases; phase++) mixed[phase] /= total || 1;
    return mixed;
  };
  return {
    edges, share, stepAt, phaseAt, mix, scales,
    first: Math.min(...edges.map((own) => own[0])), last: Math.max(...edges.map((own) => own[numSteps])),
  };
}
