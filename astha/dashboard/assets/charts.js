// Small charts in SVG. Each has a text alternative, and a line of text with its last and largest values.
import { h, s, number, plural } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 150;
const LEFT = 46;
const BOTTOM = 20;

function nice(maximum) {
  if (maximum <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(maximum));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= maximum);
}

function frame(title, summary, legend, content, wide = true) {
  return h("figure", { class: wide ? "chart" : "chart small" },
    h("figcaption", {}, title, legend && h("span", { class: "legend" }, legend)),
    content,
    h("p", { class: "summary" }, summary));
}

const swatch = (name, index) => h("span", { class: "key" }, h("i", { class: `swatch c${index % 8}` }), name);

function axes(top, show) {
  return [0, 0.5, 1].map((share) => {
    const y = 8 + (1 - share) * (HEIGHT - BOTTOM - 8);
    return [s("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
      s("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, show(top * share))];
  });
}

// series: [{name, values: [[time, value|null]]}]
export function lines(title, series, show) {
  const points = series.flatMap((one) => one.values).filter(([, value]) => value !== null);
  if (points.length < 2) return frame(title, "History appears here as it is collected: one point every five seconds.", null, null);
  const to = Math.max(...points.map(([time]) => time));
  const from = Math.min(Math.min(...points.map(([time]) => time)), to - 60000);
  const top = nice(Math.max(...points.map(([, value]) => value)));
  const x = (time) => LEFT + ((time - from) / (to - from)) * (WIDTH - LEFT - 4);
  const y = (value) => 8 + (1 - value / top) * (HEIGHT - BOTTOM - 8);
  const paths = series.map((one, index) => {
    let drawn = "";
    let last = null;
    for (const [time, value] of one.values) {
      if (value === null) last = null;
      else {
        drawn += `${last !== null && time - last < 30000 ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
        last = time;
      }
    }
    return s("path", { class: `line c${index % 8}`, d: drawn });
  });
  const times = [0, 0.5, 1].map((share) => {
    const time = from + share * (to - from);
    return s("text", { x: x(time), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][share * 2] },
      new Date(time).toISOString().slice(11, to - from < 600000 ? 19 : 16) + (share === 1 ? " UTC" : ""));
  });
  const known = series.map((one) => [one.name, one.values.map(([, value]) => value).filter((value) => value !== null)]);
  const moving = known.filter(([, values]) => values.some(Boolean));
  const still = known.length - moving.length;
  const summary = [...moving.map(([name, values]) => `${name}: now ${show(values.at(-1))}, at most ${show(Math.max(...values))}`),
    still > 0 && (moving.length ? `${plural(still, "other")}: ${show(0)}` : `always ${show(0)}`)].filter(Boolean).join("; ");
  const label = `${title}, from ${new Date(from).toISOString().slice(11, 16)} to ${new Date(to).toISOString().slice(11, 16)} UTC. ${summary}.`;
  return frame(title, summary, series.length > 1 ? series.map((one, index) => swatch(one.name, index)) : null,
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, axes(top, show), times, paths));
}

// groups: [{label, values: [number per series]}]
export function bars(title, names, groups) {
  const top = nice(Math.max(1, ...groups.flatMap((group) => group.values)));
  const step = (WIDTH - LEFT) / groups.length;
  const width = Math.min(26, (step * 0.8) / names.length);
  const drawn = groups.map((group, at) => {
    const middle = LEFT + step * (at + 0.5);
    const columns = group.values.map((value, index) => {
      const height = Math.max(value ? 2 : 0, (value / top) * (HEIGHT - BOTTOM - 8));
      const left = middle + (index - names.length / 2) * width;
      return s("rect", { class: `bar c${index}`, x: left, y: HEIGHT - BOTTOM - height, width: width - 2, height, rx: 2 },
        s("title", {}, `${group.label}, ${names[index]}: ${number(value)}`));
    });
    return [columns, s("text", { x: middle, y: HEIGHT - 5, "text-anchor": "middle", class: at % 2 ? "alternate" : null }, group.label)];
  });
  const summary = names.map((name, index) => `${name}: ${plural(groups.reduce((sum, group) => sum + group.values[index], 0), "file")}`).join("; ");
  const label = `${title}. ${groups.map((group) => `${group.label}: ${names.map((name, index) => `${name} ${group.values[index]}`).join(", ")}`).join("; ")}.`;
  return frame(title, summary, names.map(swatch),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, axes(top, (value) => number(Math.round(value))), drawn));
}

// marks: [{at, label, kind}]
export function timeline(title, marks) {
  const from = Math.min(...marks.map((mark) => mark.at));
  const to = Math.max(Date.now(), ...marks.map((mark) => mark.at));
  const x = (at) => 16 + ((at - from) / Math.max(1, to - from)) * (WIDTH - 80);
  let free = -Infinity;
  const drawn = marks.map((mark) => {
    const place = x(mark.at);
    const shown = mark.label && place > free;
    if (shown) free = place + mark.label.length * 7 + 14;
    return s("g", { class: `mark ${mark.kind}` },
      s("circle", { cx: place, cy: 34, r: mark.label ? 6 : 4 }, s("title", {}, `${mark.label || "snapshot"}, ${new Date(mark.at).toISOString().slice(0, 19)} UTC, ${mark.kind}`)),
      shown && s("text", { x: place, y: 18, "text-anchor": place > WIDTH - 120 ? "end" : "start" }, mark.label));
  });
  const label = `${title}: ${marks.length} from ${new Date(from).toISOString().slice(0, 16)} to now.`;
  return frame(title, `${plural(marks.length, "snapshot")}, ${marks.filter((mark) => mark.label).length} with a tag`, null,
    s("svg", { viewBox: `0 0 ${WIDTH} 62`, role: "img", "aria-label": label },
      s("line", { class: "grid", x1: 0, x2: WIDTH, y1: 34, y2: 34 }), drawn,
      s("text", { x: 0, y: 58 }, new Date(from).toISOString().slice(0, 16).replace("T", " ")),
      s("text", { x: WIDTH, y: 58, "text-anchor": "end" }, "now")));
}

export function sparkline(values, label) {
  const known = values.filter((value) => value !== null);
  const top = Math.max(1e-9, ...known);
  const step = 100 / Math.max(1, values.length - 1);
  const drawn = values.map((value, index) => `${index ? "L" : "M"}${(index * step).toFixed(1)} ${(22 - ((value || 0) / top) * 20).toFixed(1)}`).join("");
  return s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("path", { class: "line c0", d: drawn || "M0 22" }));
}
