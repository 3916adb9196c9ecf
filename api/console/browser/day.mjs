// An operator's day: what fails is seen with its cause, mended, and seen to work again; a refusal is traced to its rule; a key is used.
import { admin, api, assert, looks, signIn, step, url } from "./harness.mjs"

const { mend } = JSON.parse(process.env.RIG)

export default async function day() {
  for (const [part, check, cause] of [["sink", "sinks", /siem .*502/s], ["rpc", "chain", /usdc: cannot read .*502/s], ["witness", "witnesses", /ada .* has not cosigned since .*502/s]]) {
    await step(`a ${part} that is dead is seen first, with its cause and remedy, and disappears when it is mended`, async () => {
      const page = await signIn("viewer")
      const fault = page.locator("li").filter({ has: page.getByRole("heading", { name: check }) }).filter({ hasText: cause })
      await fault.first().waitFor()
      assert.ok((await fault.first().locator("p").allInnerTexts()).length > 1, "there is no remedy")
      await page.getByRole("heading", { name: "Needs attention" }).waitFor()
      await page.goto(`${url}/operations`)
      await page.getByRole("row").filter({ hasText: cause }).getByRole("link").first().click() // to the part's own page
      await page.getByRole("listitem").filter({ hasText: cause }).first().waitFor()
      await page.goto(url)
      assert.ok((await fetch(mend + part, { method: "POST" })).ok)
      await fault.first().waitFor({ state: "detached" }) // without a reload
      await page.context().close()
    })
  }

  await step("backups that have stopped are seen first, with a remedy, until an operator makes one", async () => {
    const page = await signIn("operator")
    const fault = page.locator("li").filter({ has: page.getByRole("heading", { name: "backup" }) }).filter({ hasText: /the last complete backup was made at .*, longer ago than 24h/ })
    await fault.waitFor()
    assert.match(await fault.innerText(), /make another one: attestd backup FILE/)
    const maker = await page.context().newPage()
    await maker.goto(`${url}/backups`)
    await maker.getByText("longer ago than 24h").waitFor()
    await Promise.all([maker.waitForEvent("download"), maker.getByRole("button", { name: "Download a backup" }).click()])
    await fault.waitFor({ state: "detached" }) // without a reload
    await maker.getByText(/the last complete backup was made at/).waitFor()
    await maker.getByText("longer ago than 24h").waitFor({ state: "detached" })
    await page.context().close()
  })

  for (const [path, heading] of [["watchtower", "Contract usdc"], ["witnesses", "Witnesses"], ["sinks", "Audit sinks"], ["policy", "Settings"], ["backups", "New backup"]]) {
    await step(`the looks of the page ${path}`, () => looks(`/${path}`, path, "operator", page => page.getByRole("heading", { name: heading, level: 2 }).waitFor()))
  }

  const attest = (token, beneficiary) => fetch(`${api}/functions/v1/attest`, {
    method: "POST", headers: { "content-type": "application/json", "x-api-key": token },
    body: JSON.stringify({ unspendableAddress: "0x0000000000000000000000000000000000000001", beneficiary }),
  })

  await step("a key is created in the console, used, and its use is seen", async () => {
    const page = await signIn("operator")
    await page.goto(`${url}/keys`)
    await page.getByLabel("Name of the client").fill("of the day")
    await page.getByRole("button", { name: "Create key" }).click()
    const token = await page.locator("#token").innerText()
    assert.equal((await attest(token, "0x0000000000000000000000000000000000000002")).status, 200)
    const row = page.getByRole("row").filter({ hasText: "of the day" })
    do await page.goto(`${url}/keys`)
    while (!await row.getByRole("img", { name: /^1 attestations in the past day/ }).count())
    await page.context().close()
  })

  await step("a refused request is found by its API key, with the rule that refused it", async () => {
    const { token, key } = await admin("POST", "/keys", { name: "refused" })
    const refused = await attest(token, "0xdead000000000000000000000000000000000000")
    assert.equal(refused.status, 403)
    const { code } = await refused.json()
    const page = await signIn("auditor")
    await page.goto(`${url}/activity`)
    await page.getByLabel("API key, address or other text").fill("refused")
    await page.getByLabel("Event").selectOption("refused")
    const row = page.locator("#rows tr").filter({ hasText: key.id })
    do await page.getByRole("button", { name: "Search" }).click()
    while (!await row.count())
    assert.match(await row.innerText(), new RegExp(`code: ${code}`))
    await row.getByRole("link", { name: "Refused" }).click()
    await page.getByText(/^Checked in this browser/).waitFor()
    await page.getByText("deny: the address is on the deny list of its side").waitFor()
    await page.getByText(`${key.id} (refused)`).waitFor()
    await page.context().close()
  })
}
