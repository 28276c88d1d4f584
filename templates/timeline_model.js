// The timeline's data: columns back to arrays.
const details = {
  name: 0,
  slot: 1,
  full: 2,
  operator: 3,
  stack: 4,
  shapes: 5,
  grid: 6,
  block: 7,
  reachable: 8,
  cause: 9,
  side: 10,
  grade: 11,
  finding: 12,
};

function unpack(lane) {
  let at = 0;
  const count = lane.t.length;
  lane.start = Float64Array.from(lane.t, (step) => (at += step));
  lane.end = Float64Array.from(lane.d, (length, box) => lane.start[box] + length);
  lane.longest = lane.d.reduce((a, b) => Math.max(a, b), 0);
  lane.density = new Float32Array(count).fill(1);
  lane.count = new Uint32Array(count).fill(1);
  lane.busy = Float64Array.from(lane.d);
  let i = 0;
  for (const [ahead, boxes, busy] of lane.sum || []) {
    i += ahead;
    lane.count[i] = boxes;
    lane.busy[i] = busy;
    lane.density[i] = lane.d[i] ? Math.min(busy / lane.d[i], 1) : 1;
  }
}

for (const device of data.devices) device.lanes.forEach(unpack);

/** The first box of a lane that starts at an instant or after it. */
function firstFrom(lane, ns) {
  let low = 0;
  let high = lane.start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.start[middle] < ns) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The boxes of a lane that lie in [from, to). */
function* boxesIn(lane, from, to) {
  for (
    let i = Math.max(firstFrom(lane, from - lane.longest), 0);
    i < lane.start.length && lane.start[i] < to;
    i++
  )
    if (lane.end[i] >= from) yield i;
}

const threadOf = (lane, i) => (Array.isArray(lane.h) ? lane.h[i] : lane.h);
