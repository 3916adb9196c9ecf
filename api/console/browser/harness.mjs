// What the scripts of this folder share: a headless Chromium, links into the console of the rig, and what must hold of every page. Run by
// ../browser_test.go.
import assert from "node:assert/strict"
import { readFile } from "node:fs/promises"
import { request } from "node:http"
import { createRequire } from "node:module"
import { join } from "node:path"
import { chromium } from "playwright-core"

const rig = JSON.parse(process.env.RIG) // url of the console, socket, api, key
export const url = rig.url
export const api = rig.api
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  timeout: 120_000,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
})

/** Asks the admin socket, as the command does. A disk that is busy with other tests can make the journal unavailable. */
export async function admin(method, path, body) {
  for (let tries = 60; ; tries--) {
    try {
      return await askAdmin(method, path, body)
    } catch (error) {
      if (!tries || !error.message.includes("journal_unavailable")) throw error
      await new Promise(resolve => setTimeout(resolve, 1000))
    }
  }
}

function askAdmin(method, path, body) {
  return new Promise((resolve, reject) => {
    const req = request({ socketPath: rig.socket, method, path, headers: body ? { "content-type": "application/json" } : {} }, async res => {
      let text = ""
      for await (const chunk of res) text += chunk
      res.statusCode < 300 ? resolve(JSON.parse(text.trim().split("\n").at(-1))) : reject(new Error(`${method} ${path}: ${res.statusCode} ${text}`))
    })
    req.on("error", reject).end(body && JSON.stringify(body))
  })
}

/** A link into the console, good once. */
export const link = async role => (await admin("POST", "/console/links", { role })).url

/** Has the appliance attest; the answer is an attestation. Another script may have paused it meanwhile. */
export async function attest(unspendableAddress = "0x0000000000000000000000000000000000000001", beneficiary = "0x0000000000000000000000000000000000000002") {
  for (let tries = 100; ; tries--) {
    const res = await fetch(`${rig.api}/functions/v1/attest`, {
      method: "POST", headers: { "content-type": "application/json", "x-api-key": rig.key }, body: JSON.stringify({ unspendableAddress, beneficiary }),
    })
    if (res.ok) return res.json()
    assert.ok(res.status === 503 && tries, await res.text())
    await new Promise(resolve => setTimeout(resolve, 200))
  }
}

const complaints = []

/** A page of a browser of its own. What it complains of fails the test, but for answers whose status is in `expected`, and requests to others where there are strangers. */
export async function open({ script = true, expected = [], strangers = false } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, javaScriptEnabled: script, permissions: ["clipboard-read", "clipboard-write"] })
  context.on("request", request => strangers || request.url().startsWith(url) || complaints.push(`asked another host: ${request.url()}`))
  context.on("response", response => response.status() >= 400 && !expected.includes(response.status()) && complaints.push(`${response.status()}: ${response.url()}`))
  context.on("weberror", error => complaints.push(`exception: ${error.error().stack}`))
  context.on("console", message => {
    const { url: at } = message.location()
    const ofAnswer = message.text().startsWith("Failed to load resource") && expected.some(status => message.text().includes(`${status}`))
    if (["error", "warning"].includes(message.type()) && !ofAnswer) complaints.push(`console: ${message.text()} (${at})`)
  })
  const page = await context.newPage()
  page.setDefaultTimeout(120_000) // a slow and busy machine takes its time
  return page
}

/** A page in which somebody has signed in. */
export async function signIn(role, options) {
  const page = await open(options)
  await page.goto(await link(role))
  if (options?.script === false) await page.getByRole("button", { name: "Sign in" }).click()
  await page.getByRole("button", { name: "Sign out" }).waitFor()
  return page
}

/** What axe-core finds, which must be nothing; the page does not stick out at the side either. */
export async function faultless(page, what) {
  await page.evaluate(axe)
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }))
  assert.deepEqual(violations.map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => `${n.target} ${n.failureSummary}`).join("; ")}`), [], what)
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
  assert.ok(wide <= 0, `${what}: ${wide} pixels stick out`)
}

export const pictures = process.env.TEST_SCREENSHOTS
/** How a page is looked at: layouts differ by width, colours by theme. For pictures, in all ways. */
export const ways = [[1440, "light"], [390, "dark"], ...(pictures ? [[1440, "dark"], [390, "light"]] : [])]

/** Looks at a page at both widths and in both themes: `ready` waits until all is there, and may do something first. */
export async function looks(path, name, role, ready = async () => {}) {
  const page = await signIn(role)
  for (const [width, colorScheme] of ways) {
    await page.setViewportSize({ width, height: 900 })
    await page.emulateMedia({ colorScheme })
    await page.goto(url + path)
    await ready(page)
    await faultless(page, `${name}, ${width} pixels, ${colorScheme}`)
    if (pictures) await page.screenshot({ path: join(pictures, `${name}-${width}-${colorScheme}.png`), fullPage: true })
  }
  await page.context().close()
}

/** Presses Tab until `locator` has the focus, as somebody without a mouse does; each stop must show where it is. */
export async function tabTo(page, locator) {
  for (let n = 0; n < 200; n++) {
    await page.keyboard.press("Tab")
    if (await locator.evaluate(element => element === document.activeElement)) {
      assert.notEqual(await locator.evaluate(element => getComputedStyle(element).outlineStyle), "none")
      return
    }
  }
  assert.fail(`Tab does not lead to ${locator}`)
}

/** One thing that must hold. */
export async function step(name, run) {
  const begun = Date.now()
  await run()
  assert.deepEqual(complaints.splice(0), [], name)
  console.log(`ok  ${name} (${Date.now() - begun} ms)`)
}

export const end = () => browser.close()
export { assert }
