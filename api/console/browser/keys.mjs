// API keys: made once, used, revoked by their name.
import { admin, assert, looks, signIn, step, tabTo, url } from "./harness.mjs"

let made = 0
const name = () => `browser ${process.pid} ${++made}`
const find = async name => (await admin("GET", "/keys")).keys.find(key => key.name === name)

export default async function keys() {
  await step("a key is made by keyboard, and its token is shown once, to be copied", async () => {
    const page = await signIn("operator")
    await page.goto(`${url}/keys`)
    const own = name()
    await tabTo(page, page.getByLabel("Name of the client"))
    await page.keyboard.type(own)
    await page.keyboard.press("Tab")
    await page.keyboard.press("Control+A")
    await page.keyboard.type("600/m")
    await page.keyboard.press("Enter")
    await page.getByRole("heading", { name: `API key ${own} created` }).waitFor()
    const token = await page.locator("#token").innerText()
    assert.match(token, /^attestd_[a-z2-7]{16}_[0-9a-f]{64}$/)
    await page.getByRole("button", { name: "Copy" }).click()
    await page.getByRole("button", { name: "Copied" }).waitFor()
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), token)
    const key = await find(own)
    assert.deepEqual([key.rate, key.scopes, key.id], ["10/s", ["attest", "graphql"], token.split("_")[1]])
    await page.goto(`${url}/keys`)
    assert.equal(await page.getByText(token).count(), 0)
    await page.context().close()
  })

  await step("a form that is sent twice makes one key", async () => {
    const page = await signIn("operator")
    await page.goto(`${url}/keys`)
    const own = name()
    await page.getByLabel("Name of the client").fill(own)
    await page.route(`${url}/keys`, async route => {
      if (route.request().method() !== "POST") return route.continue()
      const response = await route.fetch() // the key is made now, and its answer comes after the second click
      await new Promise(resolve => setTimeout(resolve, 800))
      await route.fulfill({ response }).catch(() => {}) // nobody waits for it where the form was sent again
    })
    await page.evaluate(() => {
      const button = document.querySelector("form.new .primary")
      setTimeout(() => button.click(), 1)
      setTimeout(() => button.click(), 400)
    })
    await page.getByRole("heading", { name: `API key ${own} created` }).waitFor()
    const { keys } = await admin("GET", "/keys")
    assert.equal(keys.filter(key => key.name === own).length, 1)
    await page.context().close()
  })

  await step("a key is revoked by typing its name, and by no other", async () => {
    const own = name()
    await admin("POST", "/keys", { name: own })
    const page = await signIn("operator")
    await page.goto(`${url}/keys`)
    const row = page.getByRole("row").filter({ hasText: own })
    for (const [typed, said] of [["another", "Not revoked"], [own, "revoked"]]) {
      await row.getByText("Revoke…").click()
      await row.getByLabel(`type ${own}`).fill(typed)
      await row.getByRole("button", { name: "Revoke" }).click()
      await (typed === own ? row : page).getByText(said).first().waitFor()
      assert.equal(Boolean((await find(own)).revoked), typed === own)
    }
    await page.context().close()
  })

  await step("a key is rotated: a successor with its settings, and then the old one is revoked", async () => {
    const own = name().replaceAll(" ", "-")
    await admin("POST", "/keys", { name: own, rate: "7/m", scopes: ["graphql"] })
    const page = await signIn("operator")
    await page.goto(`${url}/keys?q=${own}`)
    await page.getByRole("link", { name: `Rotate ${own}` }).click()
    await page.getByRole("heading", { name: `New API key instead of ${own}` }).waitFor()
    const next = await page.getByLabel("Name of the client").inputValue()
    await page.getByRole("button", { name: "Create key" }).click()
    await page.getByRole("heading", { name: `API key ${next} created` }).waitFor()
    const made = await find(next)
    assert.deepEqual([made.rate, made.scopes], ["7/m", ["graphql"]])
    await page.context().close()
  })

  await step("what was entered is kept while the user signs in again", async () => {
    const page = await signIn("operator", { expected: [403] })
    await page.goto(`${url}/keys`)
    const own = name()
    await page.getByLabel("Name of the client").fill(own)
    await page.getByLabel("graphql").uncheck()
    await page.route(`${url}/keys`, route => route.request().method() === "POST"
      ? route.fulfill({ status: 403, contentType: "text/html", body: `<link rel="icon" href="data:,"><h1>Sign in again</h1>` }) : route.continue())
    await page.getByRole("button", { name: "Create key" }).click()
    await page.getByRole("heading", { name: "Sign in again" }).waitFor()
    await page.unroute(`${url}/keys`)
    await page.goto(`${url}/keys`)
    assert.equal(await page.getByLabel("Name of the client").inputValue(), own)
    assert.equal(await page.getByLabel("graphql").isChecked(), false)
    await page.reload()
    assert.equal(await page.getByLabel("Name of the client").inputValue(), "")
    await page.context().close()
  })

  await step("without script, too", async () => {
    const page = await signIn("operator", { script: false })
    await page.goto(`${url}/keys`)
    const own = name()
    await page.getByLabel("Name of the client").fill(own)
    await page.getByRole("button", { name: "Create key" }).click()
    await page.getByRole("heading", { name: `API key ${own} created` }).waitFor()
    assert.ok(await find(own))
    await page.context().close()
  })

  await step("the keys' looks", async () => {
    await looks("/keys", "keys", "operator", page => page.getByText("Revoke…").first().click())
    await looks("/keys", "keys-viewer", "viewer", page => page.getByText("The operator role can create and revoke API keys").waitFor())
  })
}
