// Whether it signs, whether history is whole, whether data are fresh.
import { join } from "node:path"
import { admin, assert, attest, looks, pictures, signIn, step, url } from "./harness.mjs"

export default async function overview() {
  await step("the overview says in words what is, and draws what happens", async () => {
    const page = await signIn("viewer")
    await page.getByText("operational", { exact: true }).waitFor()
    await page.getByText("imported", { exact: true }).waitFor()
    await page.locator("#attestations canvas").waitFor()
    const records = page.locator("dt", { hasText: "Records" }).locator("+ dd")
    const before = Number(await records.innerText())
    await attest()
    await page.waitForFunction(before => Number([...document.querySelectorAll("dt")].find(dt => dt.innerText === "Records").nextElementSibling.innerText) > before, before)
    await page.context().close()
  })

  await step("a pause is seen, with what clients feel and the command that ends it", async () => {
    const page = await signIn("viewer")
    await admin("POST", "/pause", { reason: "the contract is upgraded" })
    try {
      await page.getByText("paused", { exact: true }).waitFor()
      await page.getByText("Requests for attestations get 503").waitFor()
      await page.getByText("attestd resume", { exact: true }).waitFor()
    } finally {
      await admin("POST", "/resume")
    }
    await page.getByText("operational", { exact: true }).waitFor()
    await page.context().close()
  })

  await step("a page that hears nothing says that it is old", async () => {
    const page = await signIn("viewer", { expected: ["ERR_FAILED"] })
    const lost = page.getByText("The appliance does not answer. This page shows old data.")
    await page.locator("#attestations canvas").waitFor()
    assert.equal(await lost.isVisible(), false)
    await page.route("**/overview/live", route => route.abort())
    await page.reload()
    await lost.waitFor()
    await page.unroute("**/overview/live")
    await lost.waitFor({ state: "hidden" })
    await page.context().close()
  })

  await step("the newest events come by themselves, also after the connection was lost, and after a reload without script", async () => {
    const event = async () => {
      const name = `feed ${process.pid} ${Math.random().toString(36).slice(2)}`
      await admin("POST", "/keys", { name })
      return name
    }
    const page = await signIn("viewer")
    const named = (page, name) => page.locator("#feed").getByRole("row").filter({ hasText: name })
    await page.locator("#attestations canvas").waitFor()
    await named(page, await event()).waitFor()

    let cut = 0
    await page.route("**/overview/live", route => cut++ ? route.continue() : route.fulfill({ contentType: "text/event-stream", body: "retry: 10\n\n" }))
    await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange"))) // follows anew: a stream that ends at once
    const missed = await event()
    await named(page, missed).getByRole("link", { name: "Key created" }).waitFor()
    assert.ok(cut > 1)
    await page.context().close()

    const plain = await signIn("viewer", { script: false })
    const later = await event()
    do await plain.reload()
    while (!await named(plain, later).count())
    await plain.context().close()
  })

  await step("doctor's findings have the command to copy", async () => {
    const page = await signIn("viewer")
    const finding = page.getByRole("listitem").filter({ hasText: "certificate" })
    await finding.getByRole("button", { name: "Copy" }).click()
    await finding.getByRole("button", { name: "Copied" }).waitFor()
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "attestd reload")
    await page.context().close()
  })

  await step("graphs tell their newest value without a pointer", async () => {
    const page = await signIn("viewer")
    await attest()
    await page.locator("#latency .u-legend", { hasText: /median\s*\d+\.\d ms/ }).waitFor()
    await page.context().close()
  })

  await step("graphs show a usual value beside an outage, a single point, and a gap, and clip no label", async () => {
    const page = await signIn("viewer")
    const end = Math.floor(Date.now() / 1000)
    const sample = (ago, seconds, errors = {}) =>
      `event: sample\ndata: ${JSON.stringify({ time: new Date(1000 * (end - ago)).toISOString(), attestations: seconds ? 12_345 : 0, p50Seconds: seconds, p99Seconds: seconds, errors, reads: 0 })}\n\n`
    const told = ["retry: 600000\n\nevent: begin\ndata: null\n\n"]
    for (let ago = 900; ago >= 0; ago--) {
      if (ago < 300 && ago > 200) continue // nothing was measured
      const [usual, outage, single] = [ago > 600, ago === 550, ago === 400]
      told.push(sample(ago, usual ? .005 : outage ? 30 : single ? .05 : null, usual ? { overloaded: 2 } : outage ? { overloaded: 20_000 } : {}))
    }
    await page.route("**/overview/live", route => route.fulfill({ contentType: "text/event-stream", body: told.join("") }))
    await page.goto(`${url}/`)
    await page.getByText("Shaded: nothing was measured.").waitFor()
    await page.locator("#latency .u-legend", { hasText: /median\s*50\.0 ms/ }).waitFor()
    if (pictures) await page.locator("#graphs").screenshot({ path: join(pictures, "overview-graphs.png") })
    await page.evaluate(() => {
      globalThis.copied = id => { // reading the graph's own canvas often makes it slow, which Chromium complains about
        const canvas = document.querySelector(`#${id} canvas`)
        const ctx = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true })
        ctx.drawImage(canvas, 0, 0)
        return [canvas, ctx]
      }
    })
    /** The heights of what is drawn in a colour so many seconds ago, in parts of the graph. */
    const drawn = (id, ago, color) => page.evaluate(([id, ago, color]) => {
      const [canvas, ctx] = copied(id)
      const [all, over] = [canvas.getBoundingClientRect(), document.querySelector(`#${id} .u-over`).getBoundingClientRect()]
      const scale = canvas.width / all.width
      const x = Math.round(scale * (over.left - all.left + over.width * (900 - ago) / 900))
      const [top, height] = [Math.round(scale * (over.top - all.top)), Math.round(scale * over.height)]
      const probe = document.body.appendChild(document.createElement("i"))
      probe.style.color = `var(${color})`
      const want = getComputedStyle(probe).color.match(/\d+/g).slice(0, 3).map(Number)
      probe.remove()
      const heights = []
      for (const dx of [-1, 0, 1]) {
        const column = ctx.getImageData(x + dx, top, 1, height).data
        for (let y = 0; y < height; y++) {
          const pixel = [...column.slice(4 * y, 4 * y + 4)]
          if (pixel[3] > 100 && want.every((part, n) => Math.abs(part - pixel[n]) < 40)) heights.push(1 - y / height)
        }
      }
      return heights
    }, [id, ago, color])
    const most = async (...args) => Math.max(...await drawn(...args), 0)
    assert.ok(await most("latency", 700, "--ink") > .1, "the usual latency lies flat")
    assert.ok(await most("latency", 550, "--ink") > .8, "the outage is missing")
    assert.ok(await most("errors", 700, "--bad") > .08, "the usual errors lie flat")
    assert.ok(await most("latency", 400, "--ink") > .2, "the single point is missing")
    for (const id of ["attestations", "latency", "errors"]) {
      assert.equal(await most(id, 230, id === "errors" ? "--bad" : "--accent"), 0, `${id}: a line crosses the gap`)
      const shaded = await drawn(id, 250, "--line")
      assert.ok(Math.max(...shaded) - Math.min(...shaded) > .9 && shaded.length > 100, `${id}: the gap is not marked`)
      assert.equal(await page.evaluate(id => {
        const [canvas, ctx] = copied(id)
        const edges = [0, canvas.width - 1].map(x => ctx.getImageData(x, 0, 1, canvas.height).data)
        return edges.some(column => column.some(part => part > 0))
      }, id), false, `${id}: a label is clipped`)
    }
    await page.context().close()
  })

  await step("a longer span shows the history, with a gap where attestd did not run, each as a rate", async () => {
    const page = await signIn("viewer")
    const end = 60 * Math.floor(Date.now() / 60_000)
    let reads = 0
    await page.route("**/overview/history*", route => {
      reads++
      assert.equal(new URL(route.request().url()).searchParams.get("span"), "24h")
      const steps = []
      for (let start = end - 6 * 3600; start <= end; start += 60) {
        if (start > end - 4 * 3600 && start < end - 2 * 3600) continue // attestd did not run
        steps.push({ start, attestations: 90, refusals: 30, errors: 6, requests: 126, p50Seconds: .004, p99Seconds: .02, signatures: 90, hsmSeconds: .003, sessions: 2 })
      }
      return route.fulfill({ json: { from: new Date(1000 * (end - 86_400)).toISOString(), until: new Date(1000 * end).toISOString(), stepSeconds: 60, steps } })
    })
    await page.getByRole("link", { name: "24 hours" }).click()
    await page.getByRole("heading", { name: "The last 24 hours" }).waitFor()
    await page.getByText("Shaded: nothing was measured.").waitFor()
    for (const [id, legend] of [["attestations", /1\.50\/s/], ["latency", /median\s*4\.0 ms\s*p99\s*20\.0 ms/], ["errors", /errors\s*0\.10\/s\s*refusals\s*0\.50\/s/], ["hsm", /mean\s*3\.0 ms/], ["sessions", /in use\s*2/]]) await page.locator(`#${id} .u-legend`, { hasText: legend }).waitFor()
    assert.equal(await page.getByRole("link", { name: "24 hours" }).getAttribute("aria-current"), "true")
    /** Whether a graph is shaded so many hours ago. */
    const shaded = hours => page.evaluate(hours => {
      const canvas = document.querySelector("#attestations canvas")
      const ctx = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true })
      ctx.drawImage(canvas, 0, 0)
      const [all, over] = [canvas.getBoundingClientRect(), document.querySelector("#attestations .u-over").getBoundingClientRect()]
      const scale = canvas.width / all.width
      const column = ctx.getImageData(Math.round(scale * (over.left - all.left + over.width * (24 - hours) / 24)), Math.round(scale * (over.top - all.top)), 1, Math.round(scale * over.height)).data
      return column.filter((part, n) => n % 4 === 3 && part > 0).length > .9 * column.length / 4
    }, hours)
    assert.deepEqual(await Promise.all([12, 5, 3, 1].map(shaded)), [true, false, true, false])
    assert.equal(reads, 1)
    if (pictures) await page.locator("#graphs").screenshot({ path: join(pictures, "overview-history.png") })
    await page.context().close()
  })

  await step("the overview's looks", () => looks("/", "overview", "operator", page => page.locator("#attestations canvas").waitFor()))
}
