// The state of the parts, and an operator's actions: pause, resume, back up, bind.
import { assert, looks, signIn, step, url } from "./harness.mjs"

export default async function operations() {
  await step("attesting is paused with a reason, and resumed", async () => {
    const page = await signIn("operator")
    await page.goto(`${url}/operations`)
    await page.getByLabel("Reason").fill("the contract is upgraded")
    await page.getByRole("button", { name: "Pause attesting" }).click()
    await page.getByText("the contract is upgraded").first().waitFor()
    await page.getByRole("button", { name: "Resume attesting" }).click()
    await page.getByRole("button", { name: "Pause attesting" }).waitFor()
    await page.getByText("operational").waitFor()
    await page.context().close()
  })

  await step("a backup is downloaded, twice from one page", async () => {
    const page = await signIn("operator")
    await page.goto(`${url}/operations`)
    await page.getByRole("link", { name: "Backups" }).click()
    for (let n = 0; n < 2; n++) {
      const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download a backup" }).click()])
      assert.match(file.suggestedFilename(), /^attestd-\d{8}T\d{6}Z\.tar\.zst$/)
      await file.createReadStream()
    }
    await page.context().close()
  })

  await step("a viewer sees the parts, and no action", async () => {
    const page = await signIn("viewer")
    await page.goto(`${url}/operations`)
    await page.getByRole("heading", { name: "Parts" }).waitFor()
    assert.equal(await page.locator("main button").count(), 0)
    await page.context().close()
  })

  await step("the page's looks", () => looks("/operations", "operations", "operator", page => page.getByRole("heading", { name: "Parts" }).waitFor()))
}
