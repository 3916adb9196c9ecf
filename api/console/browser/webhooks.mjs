// Webhooks: created, tested, seen to fail and mended, sent again, rotated, deleted.
import { createHmac } from "node:crypto"
import { createServer } from "node:http"
import { admin, assert, looks, signIn, step, url } from "./harness.mjs"

/** A receiver that keeps what it gets, and answers with `status`. */
async function receiver() {
  const got = []
  const server = createServer(async (req, res) => {
    let body = ""
    for await (const chunk of req) body += chunk
    got.push({ headers: req.headers, body })
    res.writeHead(self.status).end()
  })
  await new Promise(resolve => server.listen(0, "127.0.0.1", resolve))
  const self = { got, status: 204, url: `http://127.0.0.1:${server.address().port}/hook?token=hidden`, close: () => server.close() }
  return self
}

let made = 0
const name = () => `browser-${process.pid}-${++made}`

/** Whether one of a delivery's signatures was made with the secret. */
function signed({ headers, body }, secret) {
  const key = Buffer.from(secret.replace("whsec_", ""), "base64")
  const mac = createHmac("sha256", key).update(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`).digest("base64")
  return headers["webhook-signature"].split(" ").includes(`v1,${mac}`)
}

export default async function webhooks() {
  await step("a webhook is created, its secret is shown once, and a test is delivered with it", async () => {
    const to = await receiver()
    const own = name()
    const page = await signIn("operator")
    await page.goto(`${url}/webhooks`)
    await page.getByLabel("Name").fill("Not A Name")
    await page.getByLabel("URL").fill(to.url)
    await page.getByRole("button", { name: "Create webhook" }).click()
    await page.getByRole("alert").getByText("is not a name of").waitFor()
    await page.getByLabel("Name").fill(own)
    await page.getByRole("button", { name: "Create webhook" }).click()
    await page.getByRole("heading", { name: `Secret of the webhook ${own}` }).waitFor()
    const secret = await page.locator("#secret").innerText()
    await page.getByRole("link", { name: own }).click()
    await page.getByRole("button", { name: "Send a test event" }).click()
    await page.getByRole("alert").getByText(/^webhook\.test \S+: delivered in \d+ ms, status 204$/).waitFor()
    assert.ok(signed(to.got.find(({ body }) => JSON.parse(body).type === "webhook.test"), secret))
    assert.equal(await page.getByText("hidden").count(), 0)

    await page.getByLabel("Overlap in hours").fill("1")
    await page.getByRole("button", { name: "Rotate" }).click()
    const next = await page.locator("#secret").innerText()
    await page.getByRole("button", { name: "Send a test event" }).click()
    await page.getByRole("alert").getByText("delivered").waitFor()
    for (const one of [secret, next]) assert.ok(signed(to.got.at(-1), one))
    assert.notEqual(secret, next)

    for (const [typed, said] of [["another", "Not deleted"], [own, "All"]]) {
      await page.getByLabel(`type ${own}`).fill(typed)
      await page.getByRole("button", { name: "Delete" }).click()
      if (typed !== own) await page.getByText(said).waitFor()
    }
    await page.getByRole("heading", { name: "New webhook" }).waitFor()
    assert.equal(await page.getByRole("link", { name: own }).count(), 0)
    await page.context().close()
    to.close()
  })

  await step("a receiver that fails is seen with its error and the next attempt, and is mended from here", async () => {
    const to = await receiver()
    const own = name()
    await admin("POST", "/webhooks", { name: own, url: to.url, types: ["key.*"] })
    to.status = 500
    const page = await signIn("operator")
    await page.goto(`${url}/webhooks/${own}`)
    await page.getByText("delivers", { exact: true }).waitFor()
    const { key } = await admin("POST", "/keys", { name: own })
    const mine = ({ body }) => body.includes(key.id)
    await page.getByText("failing", { exact: true }).waitFor() // without a reload
    const row = page.getByRole("row").filter({ hasText: "retrying" }).first()
    assert.match(await row.innerText(), /500.*\n?.*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d/s)
    await page.goto(`${url}/webhooks`)
    await page.getByRole("row").filter({ hasText: own }).getByText("failing").waitFor()
    await page.getByRole("link", { name: own }).click()

    to.status = 204
    await page.getByRole("button", { name: "Send waiting events now" }).click()
    await page.getByText("delivers", { exact: true }).waitFor()
    await page.getByRole("row").filter({ hasText: "key.created" }).filter({ hasText: "delivered" }).first().waitFor()
    const before = to.got.filter(mine)
    await page.getByRole("button", { name: `Send again: ${before[0].headers["webhook-id"]}` }).first().click()
    await page.getByRole("alert").getByText(`key.created ${before[0].headers["webhook-id"]}: delivered`).waitFor()
    assert.equal(to.got.filter(mine).length, before.length + 1)
    assert.equal(to.got.filter(mine).at(-1).headers["webhook-id"], before[0].headers["webhook-id"])
    await page.getByRole("link", { name: before[0].headers["webhook-id"] }).first().click()
    await page.getByText(/Checked in this browser/).waitFor()

    await page.goto(`${url}/webhooks/${own}`)
    await page.getByRole("button", { name: "Disable" }).click()
    await page.getByText("an operator disabled it").waitFor()
    assert.match(await page.getByText("disabled", { exact: true }).getAttribute("class"), /\bwarn\b/) // no failure
    await page.getByRole("button", { name: "Enable and send waiting events" }).click()
    await page.getByText("delivers", { exact: true }).waitFor()

    const auditor = await signIn("auditor")
    await auditor.goto(`${url}/webhooks/${own}`)
    await auditor.getByRole("heading", { name: "Deliveries" }).waitFor()
    assert.equal(await auditor.locator("main form").count(), 0)
    await looks("/webhooks", "webhooks", "operator", page => page.getByRole("link", { name: own }).waitFor())
    await looks(`/webhooks/${own}`, "webhook", "operator", page => page.getByRole("heading", { name: "Deliveries" }).waitFor())
    await admin("DELETE", `/webhooks/${own}`)
    await Promise.all([page.context().close(), auditor.context().close()])
    to.close()
  })

  await step("viewers have no page of webhooks", async () => {
    const page = await signIn("viewer", { expected: [403] })
    assert.equal(await page.getByRole("link", { name: "Webhooks" }).count(), 0)
    await page.goto(`${url}/webhooks`)
    await page.getByText("Your role, viewer, does not allow this.").waitFor()
    await page.context().close()
  })
}
