// A member of a quorum of three: one other answers, one is away, and the contract on chain lacks the latter.
import { assert, looks, signIn, step, url } from "./harness.mjs"

export default async function quorum() {
  await step("the quorum tells who would sign, whose journal proves, and what the contract refuses", async () => {
    const page = await signIn("viewer")
    await page.getByRole("link", { name: "Quorum" }).click()
    const geneva = page.getByRole("row", { name: /^geneva/ })
    await geneva.getByText("signs", { exact: true }).waitFor()
    await geneva.getByText("proves nothing").waitFor()
    await page.getByRole("row", { name: /^lima/ }).getByText("does not sign").waitFor()
    await page.getByText(/^lima: signer .* is not a member on chain$/).waitFor()
    assert.equal(await page.locator("#live .state").first().innerText(), "the contract would refuse attestations")
    await page.context().close()
  })

  await step("the quorum is shown as it goes on", async () => {
    const page = await signIn("viewer")
    await page.goto(`${url}/quorum`)
    await page.evaluate(() => document.querySelector("#live h2").textContent = "as it was")
    await page.getByText("as it was").waitFor({ state: "detached" })
    await page.context().close()
  })

  await step("the quorum's looks", () => looks("/quorum", "quorum", "viewer", page => page.getByRole("heading", { name: "The contract on chain" }).waitFor()))
}
