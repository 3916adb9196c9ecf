// Who gets in, and when that ends.
import { request } from "node:http"
import { assert, faultless, link, open, signIn, step, tabTo, url } from "./harness.mjs"

export default async function access() {
  await step("a link signs in once, with a cookie that scripts cannot read", async () => {
    const page = await open({ expected: [403] })
    const once = await link("auditor")
    await page.goto(once)
    await page.getByRole("heading", { name: "Overview" }).waitFor()
    assert.equal(await page.evaluate(() => document.cookie), "")
    const [cookie] = await page.context().cookies()
    assert.equal(cookie.httpOnly, true)
    assert.equal(cookie.sameSite, "Strict")
    assert.ok(Math.abs(cookie.expires - Date.now() / 1000 - 1800) < 60)

    const other = await open({ expected: [403] })
    await other.goto(once)
    await other.getByText("This link was already used").waitFor()
    await faultless(other, "a used link")
    await Promise.all([page.context().close(), other.context().close()])
  })

  await step("looking at a link does not take it, and it works without script", async () => {
    const page = await open({ script: false })
    const once = await link("viewer")
    for (let n = 0; n < 2; n++) await page.goto(once)
    await page.getByRole("button", { name: "Sign in as viewer" }).click()
    const pages = page.getByRole("navigation", { name: "Pages" })
    for (const name of await pages.getByRole("link").allInnerTexts()) {
      await pages.getByRole("link", { name }).click()
      await page.getByRole("heading", { name, level: 1 }).waitFor()
    }
    await page.context().close()
  })

  await step("a pasted link leads back to where one was", async () => {
    const page = await open()
    await page.goto(`${url}/settings`)
    await page.getByLabel("Link").fill(await link("viewer"))
    await page.getByRole("button", { name: "Sign in" }).click()
    await page.getByRole("heading", { name: "Settings" }).waitFor()
    await page.context().close()
  })

  await step("signing out in one tab ends the other, which follows live", async () => {
    const page = await signIn("operator")
    await page.goto(`${url}/`)
    const other = await page.context().newPage()
    await other.goto(`${url}/settings`)
    await tabTo(other, other.getByRole("button", { name: "Sign out" }))
    await other.keyboard.press("Enter")
    await other.getByRole("heading", { name: "Sign in" }).waitFor()
    await page.bringToFront()
    await page.getByRole("heading", { name: "Sign in" }).waitFor()
    await page.context().close()
  })

  await step("by keyboard, the first stop skips to the page", async () => {
    const page = await signIn("viewer")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    assert.equal(await page.evaluate(() => document.activeElement.id), "main")
    await tabTo(page, page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Settings" }))
    await page.context().close()
  })

  await step("on a phone, each page of the navigation is in sight", async () => {
    const page = await signIn("operator")
    await page.setViewportSize({ width: 390, height: 844 })
    for (const link of await page.getByRole("navigation", { name: "Pages" }).getByRole("link").all()) {
      const box = await link.boundingBox()
      assert.ok(box.x >= 0 && box.x + box.width <= 390 && box.y + box.height < 300, `${await link.innerText()}: ${JSON.stringify(box)}`)
    }
    await page.getByRole("link", { name: "Settings" }).click()
    await page.getByRole("heading", { name: "Settings" }).waitFor()
    await page.context().close()
  })

  await step("another name for the same address is refused", async () => {
    const { port } = new URL(url)
    const status = await new Promise((resolve, reject) =>
      request({ host: "127.0.0.1", port, path: "/", headers: { host: `rebound.example:${port}` } }, res => resolve(res.resume().statusCode)).on("error", reject).end())
    assert.equal(status, 421)
  })

  await step("a form on another site's page does nothing", async () => {
    const page = await signIn("operator")
    const stranger = await open({ expected: [403], strangers: true })
    await stranger.context().addCookies((await page.context().cookies()).map(cookie => ({ ...cookie, sameSite: "Lax" }))) // as a lesser browser has it
    await stranger.route("http://stranger.example/", route =>
      route.fulfill({ contentType: "text/html", body: `<link rel="icon" href="data:,"><form method="post" action="${url}/sign-out"><button>Win</button></form>` }))
    await stranger.goto("http://stranger.example/")
    await stranger.getByRole("button", { name: "Win" }).click()
    await stranger.getByText("The request came from another site and was refused.").waitFor()
    await page.reload()
    await page.getByRole("button", { name: "Sign out" }).waitFor()
    await Promise.all([page.context().close(), stranger.context().close()])
  })
}
