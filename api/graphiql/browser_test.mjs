// Uses the playground as a person would, in headless Chromium. Run by browser_test.go:
//   node browser_test.mjs BASE_URL [SCREENSHOT_FOLDER]
// The server of that test puts rows into every list, and wants `x-api-key: opensesame` for the query named Secret.
import assert from "node:assert/strict"
import { mkdtemp, readFile, rm } from "node:fs/promises"
import { createRequire } from "node:module"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { chromium } from "playwright-core"

const [base, screenshots] = process.argv.slice(2)
const key = "opensesame"
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")

const profile = await mkdtemp(join(tmpdir(), "attestd-chromium-"))
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  headless: true,
  timeout: 120_000,
  viewport: { width: 1280, height: 800 },
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
})

const requests = []
const complaints = []
context.on("request", request => requests.push(request.url()))
context.on("requestfailed", request => {
  const { errorText } = request.failure()
  if (errorText !== "net::ERR_ABORTED") complaints.push(`failed: ${request.url()} ${errorText}`) // a reload aborts
})
context.on("response", response => response.status() >= 400 && complaints.push(`${response.status()}: ${response.url()}`))
context.on("console", message => {
  if (["error", "warning"].includes(message.type())) complaints.push(`console ${message.type()}: ${message.text()}`)
})
context.on("weberror", error => complaints.push(`exception: ${error.error().stack}`))
await context.addInitScript(() => {
  addEventListener("securitypolicyviolation", event =>
    console.error(`policy violation: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`))
})

const page = context.pages()[0] ?? await context.newPage()
page.setDefaultTimeout(120_000) // a slow and busy machine takes its time

const screenshot = name => screenshots && page.screenshot({ path: join(screenshots, `${name}.png`) })

/** The text in the editor for `kind`: query, variables, headers or response. */
const text = kind => page.evaluate(kind =>
  __MONACO.editor.getEditors()
    .filter(editor => editor.getContainerDomNode().closest(`.graphiql-${kind}, .graphiql-${kind}-editor`) || editor.getModel()?.uri.path.includes(kind))
    .map(editor => editor.getValue()).at(-1), kind)

/** Puts text into the editor that has the keyboard's focus, as pasting does: without the help that typing gets. */
async function paste(value) {
  await page.keyboard.press("Control+A")
  await page.keyboard.insertText(value)
}

/** The tab of the operation `name`: a button inside what GraphiQL gives the role of a tab. */
const tab = name => page.locator(".graphiql-tab-button").filter({ hasText: new RegExp(`^${name}$`) })

/** Waits until the editors' checks have come back, and have nothing to say. */
const faultless = () =>
  page.waitForFunction(() => __MONACO.editor.getModelMarkers({}).length === 0)
    .catch(async () => assert.deepEqual(
      await page.evaluate(() => __MONACO.editor.getModelMarkers({}).map(({ message, resource }) => `${resource.path}: ${message}`)), []))

/** Runs what the current tab has, and returns the answer. */
async function run() {
  const [response] = await Promise.all([
    page.waitForResponse(response => /^(?!.*__schema)/s.test(response.request().postData() ?? "__schema")),
    page.getByRole("button", { name: /Execute query/ }).click(),
  ])
  const answer = await response.json()
  const expected = JSON.stringify(answer, null, 2)
  await page.waitForFunction(
    expected => __MONACO.editor.getEditors().some(editor => editor.getValue() === expected), expected)
  return answer
}

/** What axe-core finds, which must be nothing. */
async function accessible(what) {
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }))
  assert.deepEqual(violations.flatMap(({ id, nodes }) => nodes.map(({ html, target, failureSummary }) => `${what}: ${id}: ${target} ${html.slice(0, 300)} ${failureSummary}`)), [])
}

async function steps() {
  await step("loads, and shows the first example", async () => {
    await page.goto(`${base}/graphiql`)
    assert.equal(await page.title(), "attestd playground")
    await page.locator(".graphiql-query-editor .view-line").first().waitFor()
    assert.match(await text("query"), /v2_transfers/)
    assert.equal((await text("query")).match(/^#/gm).length, 3)
    assert.match(await text("query"), /@cached\(ttl: 1\)/)
    assert.deepEqual(JSON.parse(await text("variables")), { limit: 10, cursor: null })
  })

  await step("has run it already, for who was never here", async () => {
    await page.locator(".graphiql-response").getByText("sender_canonical").first().waitFor()
  })

  await step("axe finds nothing, in both themes", async () => {
    await page.evaluate(axe)
    await faultless() // by when it is coloured
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme })
      await page.locator(`.graphiql-query-editor .monaco-editor.${colorScheme === "dark" ? "vs-dark" : "vs"}`).waitFor()
      await accessible(colorScheme)
    }
    await page.emulateMedia({ colorScheme: "light" })
  })

  await step("its accent colour is that of the console and the landing page", async () => {
    const accents = [...(await readFile("../landing/colors.css", "utf8")).matchAll(/--accent: #(\w{6})/g)].map(([, hex]) => hex.match(/../g).map(part => parseInt(part, 16)))
    for (const [n, colorScheme] of ["light", "dark"].entries()) {
      await page.emulateMedia({ colorScheme })
      const shown = (await page.locator(".graphiql-execute-button").evaluate(button => getComputedStyle(button).backgroundColor)).match(/\d+/g).map(Number)
      assert.ok(accents[n].every((part, n) => Math.abs(part - shown[n]) <= 3), `${colorScheme}: ${shown} is not ${accents[n]}`)
      await screenshot(`accent-${colorScheme}`)
    }
    await page.emulateMedia({ colorScheme: "light" })
  })

  await step("runs it, and shows rows", async () => {
    const { data, errors } = await run()
    assert.equal(errors, undefined)
    assert.ok(data.v2_transfers.length > 0)
    const shown = await page.locator(".graphiql-response").innerText()
    assert.match(shown, /sender_canonical/)
    await screenshot("rows-light")
  })

  await step("finds no fault with any example, and each gives rows", async () => {
    for (const name of ["Transfers", "PacketTraces", "Tokens", "Counts"]) {
      await tab(name).click()
      await page.locator(".graphiql-query-editor .view-line").first().waitFor()
      const { data, errors } = await run()
      assert.equal(errors, undefined, name)
      for (const [field, rows] of Object.entries(data)) assert.ok(rows.length > 0, `${name}: ${field} is empty`)
      await faultless()
      await screenshot(`example-${name}`)
    }
    await tab("Transfers").click()
  })

  await step("documents the schema", async () => {
    await page.getByRole("button", { name: "Show Documentation Explorer" }).click()
    const docs = page.locator(".graphiql-doc-explorer")
    await docs.getByText("Query", { exact: true }).first().click()
    await docs.getByText("v2_transfers", { exact: true }).click()
    await docs.getByText("v2_transfers_args").first().waitFor()
    await accessible("docs")
    await screenshot("docs")
  })

  await step("remembers what was run, also after a reload", async () => {
    await page.reload()
    await page.getByRole("button", { name: "Show History" }).click()
    await page.locator(".graphiql-history-item").filter({ hasText: "Counts" }).first().waitFor()
    await page.evaluate(axe)
    await accessible("history")
    await screenshot("history")
    await page.getByRole("button", { name: "Hide History" }).click()
  })

  await step("sends a header that is typed, and keeps it off the disk", async () => {
    await page.getByRole("button", { name: "New tab" }).click()
    await page.locator(".graphiql-query-editor .view-line").first().click()
    await paste("query Secret { v2_stats_count { name value } }")
    await page.getByRole("button", { name: "Headers", exact: true }).click()
    await page.locator(".graphiql-editor-tool .view-lines:visible").first().click()
    await paste(JSON.stringify({ "x-api-key": key }))
    const { data, errors } = await run()
    assert.equal(errors, undefined)
    assert.ok(data.v2_stats_count.length > 0)
    await screenshot("headers")
    const stored = await page.evaluate(() => JSON.stringify(localStorage))
    assert.match(stored, /Secret/)
    assert.doesNotMatch(stored, new RegExp(key))
    await page.waitForFunction(() => localStorage["graphiql:tabState"].includes("Secret"))
    await page.reload()
    await tab("Secret").waitFor()
  })

  await step("asks for an API key where a query is refused for want of one, and sends it", async () => {
    const expected = complaints.length
    await page.getByRole("button", { name: "New tab" }).click()
    await page.locator(".graphiql-query-editor .view-line").first().click()
    await paste("query Secret { v2_stats_count { value } }")
    await page.getByRole("button", { name: /Execute query/ }).click()
    await page.getByLabel("API key").fill(key)
    complaints.splice(expected) // of the 401
    await page.getByRole("button", { name: "Use", exact: true }).click()
    await page.locator(".graphiql-response").getByText("v2_stats_count").first().waitFor()
    await screenshot("key")
    assert.doesNotMatch(await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage })), new RegExp(key))
  })

  await step("is legible in the dark", async () => {
    await page.emulateMedia({ colorScheme: "dark" })
    await tab("Transfers").click()
    await page.locator("body.graphiql-dark, body:not(.graphiql-light)").waitFor()
    await run()
    await screenshot("rows-dark")
    await page.emulateMedia({ colorScheme: "light" })
  })

  await step("fits a phone", async () => {
    await page.setViewportSize({ width: 390, height: 844 })
    await page.goto("about:blank")
    await page.addInitScript(() => localStorage.clear()) // in the page itself: what the one before still writes cannot come after
    await page.goto(`${base}/graphiql`)
    await page.locator(".graphiql-response").getByText("sender_canonical").first().waitFor()
    const { data } = await run()
    assert.ok(data.v2_transfers.length > 0)
    const width = await page.evaluate(() => document.documentElement.scrollWidth)
    assert.ok(width <= 390, `the page is ${width} wide`)
    for (const pane of [".graphiql-query-editor", ".graphiql-response"]) {
      const box = await page.locator(pane).boundingBox()
      assert.ok(box.width >= 270 && box.height >= 150, `${pane} is ${box.width} x ${box.height}`)
      assert.ok(box.x >= 0 && box.x + box.width <= 390, `${pane} leaves the screen`)
    }
    await page.evaluate(axe)
    await accessible("phone")
    await screenshot("phone")
    await page.evaluate(() => dispatchEvent(new Event("attestd-key-wanted"))) // as a refusal does
    const field = await page.getByLabel("API key").boundingBox()
    assert.ok(field.x >= 0 && field.x + field.width <= 390, `the field for the key leaves the screen: ${JSON.stringify(field)}`)
    await accessible("phone-key")
    await screenshot("phone-key")
    await page.getByRole("button", { name: "Show Documentation Explorer" }).click()
    await page.locator(".graphiql-doc-explorer").getByText("Query", { exact: true }).first().click()
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 390)
    await screenshot("phone-docs")
    await page.getByRole("button", { name: "Hide Documentation Explorer" }).click() // so it is still in reach
  })

  await step("asked no other host for anything, and nothing complained", async () => {
    const elsewhere = requests.filter(url => !/^(data|blob):/.test(url) && new URL(url).origin !== new URL(base).origin)
    assert.deepEqual(elsewhere, [])
    assert.ok(requests.some(url => url.includes("graphql-worker")), "the GraphQL worker was not loaded")
    assert.deepEqual(complaints, [])
  })
}

async function step(name, body) {
  try {
    await body()
    console.log(`ok: ${name}`)
  } catch (error) {
    await screenshot("failed")?.catch(() => {})
    console.error(`FAILED: ${name}\n${error.stack}\n${complaints.join("\n")}`)
    throw error
  }
}

try {
  await steps()
} catch {
  process.exitCode = 1
} finally {
  await context.close()
  await rm(profile, { recursive: true, force: true, maxRetries: 5 })
}
