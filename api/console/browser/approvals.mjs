// Approvals: passkeys of Chromium's virtual authenticator enrol, approve and are refused. The console is opened as localhost, because
// browsers make no passkeys for an IP address.
import { admin, api, assert, faultless, link, looks, open, step, url } from "./harness.mjs"

const local = url.replace("127.0.0.1", "localhost")

/** A page of a person with an authenticator of their own. */
async function person(role) {
  const page = await open({ strangers: true })
  const devtools = await page.context().newCDPSession(page)
  await devtools.send("WebAuthn.enable")
  const { authenticatorId } = await devtools.send("WebAuthn.addVirtualAuthenticator", {
    options: { protocol: "ctap2", transport: "internal", hasResidentKey: true, hasUserVerification: true, isUserVerified: true, automaticPresenceSimulation: true },
  })
  page.verified = isUserVerified => devtools.send("WebAuthn.setUserVerified", { authenticatorId, isUserVerified })
  await page.goto((await link(role)).replace("127.0.0.1", "localhost"))
  await page.getByRole("button", { name: "Sign out" }).waitFor()
  await page.goto(`${local}/approvals`)
  return page
}

async function enrol(page, name) {
  await page.getByLabel("Name of the approver").fill(name)
  await page.getByRole("button", { name: "Enrol a passkey" }).click()
}

const approvals = async () => (await admin("GET", "/approvals")).approvals
const approvers = async () => (await admin("GET", "/approvers")).approvers.map(who => who.name)

/** Asks for an attestation with the API key whose requests need two people. */
async function ask(token, key, beneficiary = "0x00000000000000000000000000000000000000a1") {
  const res = await fetch(`${api}/functions/v1/attest`, {
    method: "POST", headers: { "content-type": "application/json", "x-api-key": token, "idempotency-key": key },
    body: JSON.stringify({ unspendableAddress: "0x00000000000000000000000000000000000000a0", beneficiary }),
  })
  return { status: res.status, ...(await res.json()) }
}

/** Opens the page again and presses Approve. */
async function approve(page, id) {
  await page.goto(`${local}/approvals`)
  await page.getByRole("button", { name: `Approve ${id}` }).click()
}

export default async function () {
  const { token } = await admin("POST", "/keys", { name: "approved" })
  const alice = await person("operator")
  const bob = await person("operator")

  await step("the first approver enrols alone, the second with the approval of the first", async () => {
    await enrol(alice, "alice")
    await alice.getByRole("rowheader", { name: "alice", exact: true }).waitFor()
    assert.deepEqual(await approvers(), ["alice"])
    await enrol(bob, "bob")
    await bob.getByText("Enrol bob").waitFor()
    assert.deepEqual(await approvers(), ["alice"])
    const [{ id }] = await approvals()
    await approve(alice, id)
    await alice.getByRole("rowheader", { name: "bob", exact: true }).waitFor()
    assert.deepEqual(await approvers(), ["alice", "bob"])
  })

  await step("two people approve, and then the request is attested", async () => {
    const first = await ask(token, "browser-1")
    assert.deepEqual([first.status, first.code], [403, "approval_required"])
    await approve(alice, first.approvalId)
    await alice.getByText("1 of 2").waitFor()
    assert.equal((await ask(token, "browser-1")).code, "approval_required")
    await approve(bob, first.approvalId)
    await bob.getByRole("row").filter({ hasText: first.approvalId }).getByText("approved").waitFor()
    assert.equal((await ask(token, "browser-1")).status, 200)
  })

  await step("a passkey whose owner is not verified approves nothing, and its page says so", async () => {
    const { approvalId } = await ask(token, "browser-2")
    await alice.verified(false)
    await approve(alice, approvalId)
    await alice.getByText("The passkey was not used").waitFor()
    await alice.verified(true)
    assert.equal((await approvals()).find(one => one.id === approvalId).approved.length, 0)
  })

  await step("a request is denied", async () => {
    const { approvalId } = await ask(token, "browser-2")
    await alice.goto(`${local}/approvals`)
    await alice.getByText("1 attestations to this beneficiary").waitFor()
    await alice.getByRole("button", { name: `Deny ${approvalId}` }).click()
    await alice.getByRole("row").filter({ hasText: approvalId }).getByText("denied by").waitFor()
    assert.equal((await ask(token, "browser-2")).code, "approval_denied")
  })

  await step("the approvals' looks", async () => {
    await ask(token, "browser-3", "0x00000000000000000000000000000000000000a2")
    await alice.goto(`${local}/approvals`)
    await faultless(alice, "approvals of an approver")
    await looks("/approvals", "approvals", "auditor", page => page.getByText("new beneficiary").first().waitFor())
    await admin("POST", `/approvals/${(await approvals())[0].id}/deny`)
  })
  await alice.context().close()
  await bob.context().close()
}
