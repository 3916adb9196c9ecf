// The journal audited, and an older checkpoint held against it.
import { assert, attest, looks, signIn, step, url } from "./harness.mjs"

/** Starts an audit and waits for its result: again, where another script has one running. */
async function audit(page) {
  for (let tries = 20; tries; tries--) {
    await page.getByRole("button", { name: "Start the audit" }).click()
    await page.locator("#result > *").first().waitFor()
    const said = await page.locator("#result").innerText()
    if (!said.includes("Another audit is running")) return said
  }
  assert.fail("another audit is running all the time")
}

/** Drops a file onto the form, as somebody does who has it on the desktop. */
async function drop(page, name, content) {
  const files = await page.evaluateHandle(([name, content]) => {
    const files = new DataTransfer()
    files.items.add(new File([content], name))
    return files
  }, [name, content])
  for (const kind of ["dragenter", "dragover", "drop"]) await page.dispatchEvent("#drop", kind, { dataTransfer: files })
  assert.equal(await page.locator("#file").evaluate(input => input.files[0].name), name)
}

export default async function audits() {
  await step("a checkpoint that was kept is dropped on the journal, which still has it", async () => {
    await attest()
    const page = await signIn("auditor", { expected: [409] })
    await page.goto(`${url}/audit`)
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download" }).click()])
    let kept = ""
    for await (const chunk of await download.createReadStream()) kept += chunk
    await attest()
    await drop(page, "kept.checkpoint", kept)
    const said = await audit(page)
    assert.match(said, /Journal integrity: verified\. \d+ attestations and \d+ events\./)
    assert.match(said, /^Result of \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$/m)
    assert.equal(await page.getByText("Last audit").count(), 0)
    assert.match(said, /The journal begins with the checkpoint of \d+ records of example\.com\/console/)
    await page.context().close()
  })

  await step("a checkpoint that was tampered with is refused, and one of a forged history is not found", async () => {
    const page = await signIn("auditor", { expected: [409] })
    await page.goto(`${url}/audit`)
    const kept = await page.locator(".command code").innerText()
    await drop(page, "tampered.checkpoint", kept.replace(/\n(\d+)\n/, "\n1$1\n"))
    assert.match(await audit(page), /The checkpoint cannot be compared with the journal/)
    await page.context().close()
  })

  await step("an audit that is stopped proves nothing", async () => {
    const page = await signIn("auditor")
    await page.route("**/audit", route => route.request().method() === "GET" && route.continue()) // it does not answer
    await page.goto(`${url}/audit`)
    await page.getByRole("button", { name: "Start the audit" }).click()
    assert.equal(await page.getByRole("button", { name: "Start the audit" }).isDisabled(), true)
    await page.getByRole("button", { name: "Stop" }).click()
    await page.getByText("Audit stopped. It found no faults so far, but the journal is not verified.").waitFor()
    assert.equal(await page.getByRole("button", { name: "Start the audit" }).isDisabled(), false)
    await page.context().close()
  })

  await step("progress is shown, and an audit that is cut off has no result", async () => {
    const page = await signIn("auditor")
    await page.route("**/audit", route => route.request().method() === "GET" ? route.continue() : route.fulfill({
      contentType: "text/event-stream", body: ': attestd\n\nevent: progress\ndata: {"done":30,"total":120}\n\n: still here\n\n',
    }))
    await page.goto(`${url}/audit`)
    await page.getByRole("button", { name: "Start the audit" }).click()
    await page.getByText("The audit ended without a result.").waitFor()
    assert.deepEqual(await page.locator("#progress progress").evaluate(bar => [bar.value, bar.max]), [30, 120])
    assert.equal(await page.locator("#progress p").textContent(), "30 of 120 records")
    await page.context().close()
  })

  await step("without script, an audit has its result on the next page", async () => {
    const page = await signIn("auditor", { script: false, expected: [409] })
    for (let tries = 20; ; tries--) {
      await page.goto(`${url}/audit`)
      await page.getByRole("button", { name: "Start the audit" }).click()
      if (await page.getByRole("heading", { name: /^Result of/ }).count()) break
      assert.ok(tries, "another audit is running all the time")
    }
    await page.getByText(/^Journal integrity: verified/).waitFor()
    await page.context().close()
  })

  await step("an audit report is downloaded, twice", async () => {
    const page = await signIn("auditor", { expected: [409] })
    for (const [button, want] of [["Download signed JSON", /"signature":"attestd audit report v1/], ["Download PDF", /^%PDF-1\.7[^]*Journal integrity: verified/], ["Download page for printing", /<h1>Audit report/]]) {
      for (let tries = 20; ; tries--) {
        await page.goto(`${url}/audit`)
        const download = page.waitForEvent("download").catch(() => null)
        const refused = page.getByText("Another audit is running").waitFor().then(() => null, () => null)
        await page.getByRole("button", { name: button }).click()
        const file = await Promise.race([download, refused])
        if (file) {
          let text = ""
          for await (const chunk of await file.createReadStream()) text += chunk
          assert.match(text, want)
          break
        }
        assert.ok(tries, "another audit is running all the time")
      }
    }
    await page.context().close()
  })

  await step("the audit's looks", () => looks("/audit", "audit", "auditor", audit))
}
