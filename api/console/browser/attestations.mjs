// The journal's attestations: as they come, searched for, and each with its proof, which the browser checks by itself.
import { assert, attest, looks, signIn, step, tabTo, url } from "./harness.mjs"

let made = 0
/** An attestation for addresses that no other step has asked for. */
const fresh = () => {
  const n = (++made).toString(16).padStart(4, "0")
  return attest(`0xcc${"0".repeat(34)}${n}`, `0xdd${"0".repeat(34)}${n}`)
}
const verdict = page => page.locator("#inclusion .verdict .state")

export default async function attestations() {
  await step("new attestations come by themselves, and wait while paused", async () => {
    const page = await signIn("auditor")
    await page.goto(`${url}/attestations`)
    await page.getByText("Live", { exact: true }).waitFor()
    const first = await fresh()
    await page.getByRole("link", { name: first.id }).waitFor()
    await tabTo(page, page.getByRole("button", { name: "Pause" }))
    await page.keyboard.press("Enter")
    await page.getByText("Paused", { exact: true }).waitFor()
    const told = page.waitForResponse(response => response.url().includes("/attestations/tail"), { timeout: 1000 }).catch(() => {})
    const second = await fresh()
    await told
    assert.equal(await page.getByRole("link", { name: second.id }).count(), 0)
    await page.getByRole("button", { name: "Resume" }).click()
    await page.getByRole("link", { name: second.id }).waitFor()
    assert.equal(await page.getByRole("link", { name: first.id }).count(), 1)
    await page.context().close()
  })

  await step("an attestation is found by its hash, and its proof is checked in the browser", async () => {
    const { id, hash } = await fresh()
    const page = await signIn("auditor")
    await page.goto(`${url}/attestations`)
    await page.getByLabel("Id, API key, address or hash").fill(hash)
    await page.keyboard.press("Enter")
    await page.getByRole("link", { name: id }).click()
    await verdict(page).getByText(/^Checked in this browser: \d+ hashes lead from record \d+ to the root .* which the log's key has signed\.$/).waitFor()
    await page.locator(".node.root", { hasText: "as in the checkpoint" }).waitFor()
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download the proof", exact: true }).click()])
    assert.equal(download.suggestedFilename(), `${id}.tlog-proof`)
    await page.context().close()
  })

  await step("a proof that was tampered with fails", async () => {
    await fresh()
    const { id } = await fresh()
    const page = await signIn("auditor")
    for (const [what, change, said] of [
      ["a hash", lines => (lines[2] = otherHash(lines[2])), /another root than the checkpoint's/],
      ["the index", lines => (lines[1] = "index 0"), /another root|fewer hashes|more hashes/],
      ["a hash left out", lines => lines.splice(2, 1), /another root|fewer hashes/],
      ["the checkpoint's root", lines => (lines[at(lines) + 2] = otherHash(lines[at(lines) + 2])), /another root than the checkpoint's/],
      ["the signature", lines => (lines[lines.length - 2] = otherSignature(lines.at(-2))), /not by the log's key/],
      ["the header", lines => (lines[0] = "c2sp.org/tlog-proof@v2"), /the first line is not/],
    ]) {
      await page.route("**/proof", async route => {
        const answer = await route.fetch()
        const lines = (await answer.text()).split("\n")
        change(lines)
        await route.fulfill({ response: answer, body: lines.join("\n") })
      })
      await page.goto(`${url}/attestations/${id}`)
      await verdict(page).getByText(/^Not proven: /).waitFor()
      assert.match(await verdict(page).innerText(), said, what)
      assert.ok(await verdict(page).evaluate(element => element.classList.contains("bad")), what)
      await page.unroute("**/proof")
    }
    await page.reload()
    await verdict(page).getByText(/^Checked in this browser/).waitFor()
    await page.context().close()
  })

  await step("a page that shows another record's leaf fails", async () => {
    const [one, other] = [await fresh(), await fresh()]
    const page = await signIn("auditor")
    const leafOf = async id => /data-leaf="([0-9a-f]+)"/.exec(await (await page.request.get(`${url}/attestations/${id}`)).text())[1]
    const [leaf, forged] = [await leafOf(one.id), await leafOf(other.id)]
    await page.route(`**/attestations/${one.id}`, async route => {
      const answer = await route.fetch()
      await route.fulfill({ response: answer, body: (await answer.text()).replace(leaf, forged) })
    })
    await page.goto(`${url}/attestations/${one.id}`)
    await verdict(page).getByText("Not proven: the leaf belongs to another record.").waitFor()
    await page.context().close()
  })

  await step("a browser that cannot check says so", async () => {
    const { id } = await fresh()
    for (const [lacks, said] of [
      [() => Object.defineProperty(crypto, "subtle", { value: undefined }), /^Not checked: /],
      [() => crypto.subtle.importKey = () => Promise.reject(new DOMException("no such algorithm", "NotSupportedError")), /Its signature was not checked/],
    ]) {
      const page = await signIn("auditor")
      await page.addInitScript(lacks)
      await page.goto(`${url}/attestations/${id}`)
      await verdict(page).getByText(said).waitFor()
      assert.ok(await verdict(page).evaluate(element => element.classList.contains("warn")))
      await page.context().close()
    }
  })

  await step("without script, the record and its hashes are there, and nothing is said to be proven", async () => {
    const { id } = await fresh()
    const page = await signIn("viewer", { script: false })
    await page.goto(`${url}/attestations?q=${id}`)
    await page.getByRole("heading", { name: "In the log" }).waitFor()
    await page.getByText("With JavaScript, your browser verifies").waitFor()
    assert.ok(await page.locator(".climb code").count() > 1)
    await page.context().close()
  })

  await step("a viewer checks the proof without the addresses", async () => {
    const { id } = await fresh()
    const page = await signIn("viewer")
    await page.goto(`${url}/attestations/${id}`)
    await verdict(page).getByText(/^Checked in this browser/).waitFor()
    await page.getByText("The viewer role does not show addresses and hashes.").waitFor()
    await page.context().close()
  })

  await step("the looks of attestations", async () => {
    const { id } = await fresh()
    await looks("/attestations", "attestations", "auditor", page => page.getByText("Live", { exact: true }).waitFor())
    await looks("/attestations", "attestations-viewer", "viewer", page => page.getByText("Live", { exact: true }).waitFor())
    await looks("/attestations?q=nobody", "attestations-wrong", "auditor", page => page.getByRole("alert").waitFor())
    await looks(`/attestations/${id}`, "attestation", "auditor", async page => {
      await verdict(page).getByText(/^Checked/).waitFor()
      await page.getByText("Checkpoint, signed with the log key").click()
    })
  })
}

/** Where the checkpoint begins: behind the empty line. */
const at = lines => lines.indexOf("") + 1
const otherHash = text => {
  const bytes = Buffer.from(text, "base64")
  bytes[31] ^= 1
  return bytes.toString("base64")
}
const otherSignature = line => {
  const bytes = Buffer.from(line.split(" ")[2], "base64")
  bytes[bytes.length - 1] ^= 1
  return [...line.split(" ").slice(0, 2), bytes.toString("base64")].join(" ")
}
