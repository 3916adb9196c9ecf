// What is at the appliance's own address, as somebody comes there who has read nothing: the page, the reference, the way to the playground.
import { join } from "node:path"
import { assert, attest, faultless, open, step, tabTo, url, ways } from "./harness.mjs"

const { api } = JSON.parse(process.env.RIG)
const pictures = process.env.TEST_SCREENSHOTS

/** A page of a browser that may ask the appliance alone. */
async function visit(path, options) {
  const asked = []
  const page = await open({ ...options, strangers: true })
  page.context().on("request", request => asked.push(request.url()))
  await page.goto(api + path)
  return { page, strangers: () => asked.filter(address => !address.startsWith(api)) }
}

/** The page in the ways in which it is looked at. */
async function looks(path, name) {
  const { page, strangers } = await visit(path)
  for (const [width, colorScheme] of ways) {
    await page.setViewportSize({ width, height: 900 })
    await page.emulateMedia({ colorScheme })
    await page.goto(api + path)
    await faultless(page, `${name}, ${width} pixels, ${colorScheme}`)
    if (pictures) await page.screenshot({ path: join(pictures, `${name}-${width}-${colorScheme}.png`), fullPage: path === "/" })
  }
  assert.deepEqual(strangers(), [])
  await page.context().close()
}

/** Waits until the page says that it attests: it tells of the moment at which it was made, which may be a busy one. */
async function ready(page) {
  const state = page.locator("p.state").first()
  for (let tries = 0; (await state.innerText()) !== "Ready"; tries++) {
    assert.ok(tries < 40, await state.innerText())
    await page.waitForTimeout(500)
    await page.reload()
  }
}

export default async function front() {
  const { signerAddress } = await attest()

  await step("a stranger finds the signer, the console and the last attestation's proof", async () => {
    for (const script of [true, false]) {
      const { page, strangers } = await visit("/", { script })
      await ready(page)
      assert.equal(await page.locator("[data-copy]").innerText(), signerAddress)
      await page.getByRole("img", { name: /QR code/ }).waitFor()
      assert.equal(await page.getByRole("link", { name: /^Console/ }).getAttribute("href"), url)
      await page.getByRole("link", { name: "The proof as JSON" }).click()
      const proof = JSON.parse(await page.locator("pre").first().innerText())
      assert.match(proof.leafHash, /^[0-9a-f]{64}$/)
      assert.match(proof.checkpoint, new RegExp(`\n${proof.treeSize}\n`))
      assert.deepEqual(strangers(), [])
      await page.context().close()
    }
  })

  await step("the address is copied by a button, and by keyboard", async () => {
    const { page } = await visit("/")
    const button = page.getByRole("button", { name: "Copy the address" })
    await tabTo(page, button)
    await page.keyboard.press("Enter")
    await page.getByRole("button", { name: "Copied" }).waitFor()
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), signerAddress)
    await page.context().close()
  })

  await step("the reference is found, and leads from a request to its body", async () => {
    const { page, strangers } = await visit("/", { script: false })
    await page.getByRole("link", { name: /^API reference/ }).click()
    await page.getByRole("link", { name: "POST /functions/v1/attest", exact: true }).click()
    await page.locator("#attest").getByRole("link", { name: "AttestRequest" }).click()
    assert.equal(new URL(page.url()).hash, "#schema-AttestRequest")
    await page.locator("#schema-AttestRequest").getByText("unspendableAddress").waitFor()
    assert.deepEqual(strangers(), [])
    await page.context().close()
  })

  await step("the endpoint of GraphQL leads a person to the playground", async () => {
    for (const path of ["/v1/graphql", "/graphiql/"]) {
      const { page } = await visit(path, { expected: [404] }) // without an icon or assets, where it is not built
      assert.equal(new URL(page.url()).pathname, "/graphiql")
      await page.context().close()
    }
  })

  await step("both pages at both widths, in both themes", async () => {
    await looks("/", "front")
    await looks("/docs", "reference")
  })
}
