// Whether it signs, whether history is whole, whether data are fresh.
import { admin, assert, attest, looks, signIn, step } from "./harness.mjs"

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

  await step("the overview's looks", () => looks("/", "overview", "operator", page => page.locator("#attestations canvas").waitFor()))
}
