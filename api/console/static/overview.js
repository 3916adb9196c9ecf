// Keeps the overview up to date, and draws its graphs where the build has uPlot.
import { follow } from "./live.js"

const { default: Graph } = await import("./uplot.js").catch(() => ({}))
/** The time span of the graphs: live, with a sample for each second, or of the history, with one for each of its steps. */
const { span, seconds, live } = document.getElementById("graphs").dataset
const isLive = live !== undefined

/** The samples of the graphs, by column; a place that is null has nothing to draw. */
let columns = { time: [], attestations: [], p50: [], p99: [], errors: [], refusals: [], hsm: [], sessions: [] }

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/** What a graph draws: names of columns with what they are called and their colour, and how a value is written. */
const kinds = {
  attestations: { series: [["attestations", "attestations", "--accent"]], unit: "/s", digits: isLive ? 0 : 2 },
  latency: { series: [["p50", "median", "--accent"], ["p99", "p99", "--ink"]], unit: " ms", digits: 1, log: true },
  errors: { series: [["errors", "errors", "--bad"], ["refusals", "refusals", "--warn"]], unit: "/s", digits: isLive ? 0 : 2, asinh: true },
  hsm: { series: [["hsm", "mean", "--accent"]], unit: " ms", digits: 1, log: true },
  sessions: { series: [["sessions", "in use", "--accent"]], unit: "", digits: 0 },
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
    const from = at(Math.max(0, n - 1))
    if (value === null && n + 1 < all.length) ctx.fillRect(from, bbox.top, at(n + 1) - from, bbox.height)
  })
}

function draw(id) {
  const { series, unit, digits, log, asinh } = kinds[id]
  const place = document.getElementById(id)
  place.replaceChildren()
  const axis = { stroke: style("--quiet"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" }
  const clock = seconds => new Date(seconds * 1000).toISOString()
  const told = at => isLive ? clock(at).slice(11, 19) + "Z" : clock(at).slice(0, 16).replace("T", " ") + "Z"
  const graph = new Graph({
    width: place.clientWidth, height: 150, legend: { live: true }, cursor: { y: false, drag: { x: false, y: false } }, padding: [8, 24, 0, 0],
    scales: { x: { range: (_, min, max) => [Math.min(min, max - seconds), max] }, y: { distr: log ? 3 : asinh ? 4 : 1, range: log ? decades : linear } },
    axes: [
      { ...axis, space: 70, size: 30, values: (_, ticks) => ticks.map(tick => seconds > 86400 ? clock(tick).slice(5, 10) : clock(tick).slice(11, 16)) },
      { ...axis, values: (_, ticks) => ticks.map(tick => tick < 0 ? null : tick?.toLocaleString("en")), ...((log || asinh) && { grid: { ...axis.grid, filter: wholeDecades } }), size: (_, values) => Math.max(44, 16 + 8 * Math.max(0, ...(values ?? []).map(value => `${value ?? ""}`.length))), space: log ? 18 : 36 },
    ],
    hooks: { drawClear: [shadeGaps] },
    series: [
      { label: "at", value: (graph, at) => { const time = at ?? latest(graph.data[0]); return time == null ? "–" : told(time) } },
      ...series.map(([, label, color], n) => ({
        label, width: 1.5, points: { show: true, size: 4, filter: alone }, spanGaps: false, dash: n ? [4, 3] : undefined,
        stroke: style(color),
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

const gapAt = time => {
  for (const column of Object.values(columns)) column.push(null)
  columns.time[columns.time.length - 1] = time
}

function add(sample) {
  const time = Math.round(Date.parse(sample.time) / 1000)
  if (time - columns.time.at(-1) > 2) gapAt(time - 1) // nothing was measured in between
  const refusals = sample.refusals ?? 0
  const all = Object.values(sample.errors ?? {}).reduce((sum, n) => sum + n, 0)
  const values = {
    time, attestations: sample.attestations, p50: milliseconds(sample.p50Seconds), p99: milliseconds(sample.p99Seconds),
    errors: all - refusals, refusals, hsm: milliseconds(sample.hsmSeconds ?? null), sessions: sample.sessionsInUse ?? 0,
  }
  for (const [name, column] of Object.entries(columns)) {
    column.push(values[name])
    column.splice(0, column.length - seconds)
  }
  redraw()
}

let asked = 0
/** Reads the history again, at most once a minute, as it changes. */
async function readHistory() {
  if (performance.now() < asked) return
  asked = performance.now() + 60_000
  const answer = await fetch(`/overview/history?span=${span}`)
  if (!answer.ok) return // the stream tells why
  const { from, stepSeconds: step, steps } = await answer.json()
  for (const column of Object.values(columns)) column.length = 0
  const begin = Math.floor(Date.parse(from) / 1000)
  for (const one of steps) {
    const last = columns.time.at(-1)
    if (last === undefined ? one.start - begin > step : one.start - last > step) gapAt(last === undefined ? begin : last + step)
    const latency = value => one.requests ? milliseconds(value) : null
    const values = {
      time: one.start, attestations: one.attestations / step, p50: latency(one.p50Seconds), p99: latency(one.p99Seconds),
      errors: one.errors / step, refusals: one.refusals / step, hsm: one.signatures ? milliseconds(one.hsmSeconds) : null, sessions: one.sessions,
    }
    for (const [name, column] of Object.entries(columns)) column.push(values[name])
  }
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
  begin: () => { if (isLive) for (const column of Object.values(columns)) column.length = 0 },
  sample: isLive ? add : readHistory,
  now: replacer(document.getElementById("now")),
  feed: replacer(document.getElementById("feed")),
})
