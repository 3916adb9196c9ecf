// Signing in at a provider.
import { assert, faultless, open, step, url } from "./harness.mjs"

/** Signs in as somebody, where the provider asks. */
async function signIn(page, account) {
  await page.goto(`${url}/settings`)
  await page.getByRole("link", { name: "Sign in with your organisation" }).click()
  await page.getByLabel("Account").fill(account)
  await page.getByRole("button", { name: "Continue" }).click()
}

export default async function oidc() {
  await step("who signs in at the provider has the role of the group, and is led back", async () => {
    const page = await open({ strangers: true })
    await page.goto(url)
    await page.getByRole("link", { name: "Sign in with your organisation" }).waitFor()
    await faultless(page, "the sign-in")
    await signIn(page, "ada")
    await page.getByRole("heading", { name: "Settings" }).waitFor()
    await page.getByText("ada (ada@example.com)").waitFor()
    await page.getByText("auditor, until").waitFor()
    assert.deepEqual((await page.context().cookies(url)).filter(cookie => cookie.name.startsWith("attestd")).map(({ name, sameSite }) => [name, sameSite]),
      [["attestd-console", "Strict"]])

    // The provider knows the browser by then, and asks again only where it must.
    await page.getByRole("button", { name: "Sign out" }).click()
    await page.getByRole("link", { name: "Sign in with your organisation" }).click()
    await page.getByRole("heading", { name: "Overview" }).waitFor()
    await page.goto(`${url}/oidc?next=/settings&again=yes`)
    await page.getByLabel("Account").waitFor()
    await page.context().close()
  })

  await step("who is in no group that may is told so, and is not signed in", async () => {
    const page = await open({ strangers: true, expected: [403] })
    await signIn(page, "mallory")
    await page.getByText("You signed in as mallory (mallory@example.com), but your groups do not allow access to the console.").waitFor()
    await page.goto(url)
    await page.getByRole("heading", { name: "Sign in" }).waitFor()
    await page.context().close()
  })

  await step("a sign-in that began elsewhere is refused", async () => {
    const victim = await open({ expected: [403] })
    await victim.goto(`${url}/oidc/callback?state=${"A".repeat(26)}&code=stolen`)
    await victim.getByText("This sign-in was started in another browser").waitFor()
    await victim.context().close()
  })
}
