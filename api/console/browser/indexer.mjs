// A daemon that reads three chains: one has an RPC that fails, one cannot be read beyond block 200, one is read to its head.
import { assert, looks, signIn, step, url } from "./harness.mjs"

export default async function indexer() {
  await step("each chain tells whether it is read, why not, and how its RPCs are", async () => {
    const page = await signIn("viewer")
    await page.getByRole("navigation").getByRole("link", { name: "Indexer" }).click()
    const chain = id => page.getByRole("region", { name: id })
    assert.equal(await chain("union.union-1").locator(".state").first().innerText(), "read to the head")
    await chain("ethereum.1001").getByText("cannot be read", { exact: true }).waitFor()
    await chain("ethereum.1001").getByText("check rpcs and core in indexer.chains").waitFor()
    await chain("ethereum.1001").getByRole("progressbar", { name: "ethereum.1001: blocks read" }).waitFor()
    assert.equal(await chain("ethereum.1337").getByRole("row").filter({ hasText: "answers" }).count(), 2)
    await chain("ethereum.1337").getByRole("row").filter({ hasText: "fails" }).waitFor()
    await page.context().close()
  })

  await step("the chains are shown as they are read", async () => {
    const page = await signIn("viewer")
    await page.goto(`${url}/indexer`)
    await page.evaluate(() => document.querySelector("#live h2").textContent = "as it was")
    await page.getByText("as it was").waitFor({ state: "detached" })
    await page.context().close()
  })

  await step("the indexer's looks", () => looks("/indexer", "indexer", "viewer", page => page.getByRole("heading", { name: "union.union-1" }).waitFor()))
}
