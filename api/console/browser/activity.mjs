// What happened: events are found, followed as they come, and downloaded.
import { admin, assert, looks, signIn, step, url } from "./harness.mjs"

const name = () => `activity ${process.pid} ${Math.random().toString(36).slice(2)}`

export default async function activity() {
  await step("a new event comes by itself, and leads to its proof", async () => {
    const page = await signIn("viewer")
    await page.goto(`${url}/activity`)
    await page.getByText("Live", { exact: true }).waitFor()
    const own = name()
    await admin("POST", "/keys", { name: own })
    const row = page.getByRole("row").filter({ hasText: own })
    await row.waitFor()
    await row.getByRole("link", { name: "Key created" }).click()
    await page.getByRole("heading", { name: /^Event \S+: key_created/ }).waitFor()
    await page.getByText(/Checked in this browser/).waitFor()
    await page.context().close()
  })

  await step("events are filtered, and downloaded as a file", async () => {
    const own = name()
    const { key } = await admin("POST", "/keys", { name: own })
    await admin("POST", `/keys/${key.id}/revoke`)
    const page = await signIn("viewer")
    await page.goto(`${url}/activity`)
    await page.getByLabel("API key, address or other text").fill(own)
    await page.getByLabel("Event").selectOption("key_revoked")
    await page.getByRole("button", { name: "Search" }).click()
    await page.getByRole("heading", { name: "Found" }).waitFor()
    assert.deepEqual(await page.locator("#rows a").allInnerTexts(), ["Key revoked"])
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download CSV" }).click()])
    let file = ""
    for await (const chunk of await download.createReadStream()) file += chunk
    assert.match(file, /^index,time,id,event,by,details\n\d+,[^\n]*key_revoked[^\n]*\n$/)
    await page.context().close()
  })

  await step("the activity's looks", () => looks("/activity", "activity", "viewer", page => page.getByText("Live", { exact: true }).waitFor()))
}
