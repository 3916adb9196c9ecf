// A replica that follows an upstream, which lacks a field and lies about a transfer.
import { assert, looks, signIn, step, url } from "./harness.mjs"

export default async function replica() {
  await step("the replica tells how far it is, what is missing, and what is quarantined", async () => {
    const page = await signIn("viewer")
    await page.goto(`${url}/replica`)
    await page.getByText("live", { exact: true }).waitFor()
    for (const kind of ["packets", "transfers"]) await page.getByRole("progressbar", { name: `${kind} in the replica` }).waitFor()
    await page.getByText("v2_channel_type.sla").waitFor()
    await page.getByRole("cell", { name: /base_amount/ }).first().waitFor()
    await page.context().close()
  })

  await step("the lag is drawn, and drawn again as it goes on", async () => {
    const page = await signIn("viewer")
    await page.goto(`${url}/replica`)
    await page.evaluate(() => document.querySelector("#live h2").textContent = "as it was")
    await page.getByText("as it was").waitFor({ state: "detached" })
    await page.getByRole("img", { name: /^Lag in the past hour: .* now, at most/ }).waitFor()
    assert.match(await page.locator(".lag path:not(.gap)").getAttribute("d"), /^M/)
    await page.context().close()
  })

  await step("the replica's looks", () => looks("/replica", "replica", "viewer", page => page.getByRole("heading", { name: "Quarantined rows" }).waitFor()))
}
