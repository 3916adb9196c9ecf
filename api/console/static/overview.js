// Keeps the overview up to date, and draws its graphs where the build has uPlot.
import { follow } from "./live.js"

const { default: Graph } = await import("./uplot.js").catch(() => ({}))
const window15 = 15 * 60

/** The samples of the graphs, by column; a place that is null has nothing to draw. */
let columns = { time: [], attestations: [], p50: [], p99: [], errors: [] }

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/** What a graph draws: names of columns with what they are called, and how a value is written. */
const kinds = {
  attestations: { series: [["attestations", "attestations"]], unit: "/s", digits: 0 },
  latency: { series: [["p50", "median"], ["p99", "p99"]], unit: " ms", digits: 1, log: true },
  errors: { series: [["errors", "errors"]], unit: "/s", digits: 0, color: "--bad", asinh: true },
}

/** The ends of the y axis. A logarithmic one, or the inverse hyperbolic sine with a zero, still shows ordinary values beside an outage. */
const linear = (_, min, max) => [0, Math.max(max * 1.1, 1)]
const decades = (_, min, max) => min > 0 ? [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max * 1.01))] : [1, 1000]

/** The points without a neighbour: a line does not show them. */
const alone = (graph, series) => {
  const values = graph.data[series]
  return [...values.keys()].filter(n => values[n] != null && values[n - 1] == null && values[n + 1] == null)
}

const wholeDecades = (_, ticks) => ticks.map(tick => tick === 0 || Number.isInteger(Math.log10(tick)) ? tick : null)

const number = (n, digits) => n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })

const latest = values => values.findLast(value => value != null)

/** Shades the spans in which nothing was measured. */
function shadeGaps(graph) {
  const { ctx, bbox } = graph
  const at = n => graph.valToPos(columns.time[n], "x", true)
  ctx.fillStyle = style("--line")
  columns.attestations.forEach((value, n, all) => {
    if (value === null && n > 0 && n + 1 < all.length) ctx.fillRect(at(n - 1), bbox.top, at(n + 1) - at(n - 1), bbox.height)
  })
}

function draw(id) {
  const { series, unit, digits, color, log, asinh } = kinds[id]
  const place = document.getElementById(id)
  place.replaceChildren()
  const axis = { stroke: style("--quiet"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" }
  const clock = seconds => new Date(seconds * 1000).toISOString()
  const graph = new Graph({
    width: place.clientWidth, height: 150, legend: { live: true }, cursor: { y: false, drag: { x: false, y: false } }, padding: [8, 24, 0, 0],
    scales: { x: { range: (_, min, max) => [Math.min(min, max - window15), max] }, y: { distr: log ? 3 : asinh ? 4 : 1, range: log ? decades : linear } },
    axes: [
      { ...axis, space: 70, values: (_, ticks) => ticks.map(tick => clock(tick).slice(11, 16)) },
      { ...axis, values: (_, ticks) => ticks.map(tick => tick < 0 ? null : tick?.toLocaleString("en")), ...((log || asinh) && { grid: { ...axis.grid, filter: wholeDecades } }), size: (_, values) => Math.max(44, 16 + 8 * Math.max(0, ...(values ?? []).map(value => `${value ?? ""}`.length))), space: log ? 18 : 36 },
    ],
    hooks: { drawClear: [shadeGaps] },
    series: [
      { label: "at", value: (graph, at) => { const time = at ?? latest(graph.data[0]); return time == null ? "–" : clock(time).slice(11, 19) + "Z" } },
      ...series.map(([, label], n) => ({
        label, width: 1.5, points: { show: true, size: 4, filter: alone }, spanGaps: false, dash: n ? [4, 3] : undefined,
        stroke: style(color ?? (n ? "--ink" : "--accent")),
        value: (graph, value, n, at) => {
          const shown = at == null ? latest(graph.data[n]) : value
          return shown == null ? "none" : number(shown, digits) + unit
        },
      })),
    ],
  }, data(id), place)
  return graph
}

const data = id => [columns.time, ...kinds[id].series.map(([name]) => columns[name])]

const graphs = new Map()
function drawAll() {
  for (const graph of graphs.values()) graph.destroy()
  for (const id of Object.keys(kinds)) graphs.set(id, draw(id))
}

let waiting = false
/** Draws what came, once before the next picture. */
function redraw() {
  if (!Graph || waiting) return
  waiting = true
  requestAnimationFrame(() => {
    waiting = false
    for (const [id, graph] of graphs) graph.setData(data(id))
    document.getElementById("gaps").hidden = !columns.attestations.includes(null)
  })
}

const milliseconds = seconds => (seconds === null ? null : seconds * 1000)

function add(sample) {
  const time = Math.round(Date.parse(sample.time) / 1000)
  if (time - columns.time.at(-1) > 2) { // nothing was measured in between
    for (const column of Object.values(columns)) column.push(null)
    columns.time[columns.time.length - 1] = time - 1
  }
  columns.time.push(time)
  columns.attestations.push(sample.attestations)
  columns.p50.push(milliseconds(sample.p50Seconds))
  columns.p99.push(milliseconds(sample.p99Seconds))
  columns.errors.push(Object.values(sample.errors ?? {}).reduce((sum, n) => sum + n, 0))
  for (const column of Object.values(columns)) column.splice(0, column.length - window15)
  redraw()
}

const patience = 15_000

/** Replaces the content of a place with new HTML. The focus stays where it is, and what somebody selects stays for a while. */
function replacer(place) {
  let replaced = 0
  const stops = () => [...place.querySelectorAll("a, button")]
  return html => {
    const fresh = document.createElement("div")
    fresh.innerHTML = html
    const selects = !getSelection().isCollapsed && place.contains(getSelection().anchorNode)
    if (fresh.innerHTML === place.innerHTML || (selects && performance.now() - replaced < patience)) return
    replaced = performance.now()
    const focused = stops().indexOf(document.activeElement)
    place.replaceChildren(...fresh.childNodes)
    if (focused >= 0) stops()[focused]?.focus({ preventScroll: true })
  }
}

if (Graph) {
  document.getElementById("graphs").hidden = false
  drawAll()
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll)
  new ResizeObserver(() => {
    for (const [id, graph] of graphs) graph.setSize({ width: document.getElementById(id).clientWidth, height: 150 })
  }).observe(document.getElementById("graphs"))
}

follow("/overview/live", {
  begin: () => { for (const column of Object.values(columns)) column.length = 0 },
  sample: add,
  now: replacer(document.getElementById("now")),
  feed: replacer(document.getElementById("feed")),
})
