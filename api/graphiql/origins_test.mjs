// Asks an appliance from a page of another origin, in headless Chromium. Run by appliance/cmd/attestd/origins_test.go:
//   node origins_test.mjs PAGE APPLIANCE API_KEY
// The appliance wants a key for GraphQL, answers two requests without one in a minute, and lists PAGE's origin in server.origins.
import assert from "node:assert/strict"
import { chromium } from "playwright-core"

const [page, appliance, key] = process.argv.slice(2)
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  timeout: 120_000, // a slow and busy machine starts it late
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
})
try {
  const tab = await browser.newPage()
  tab.setDefaultTimeout(120_000)
  await tab.goto(page)

  /** What a script of the page sees of an answer. */
  const ask = (path, headers, body) => tab.evaluate(async ([url, headers, body]) => {
    try {
      const answer = await fetch(url, { method: "POST", headers: { "content-type": "application/json", ...headers }, body })
      return { status: answer.status, retryAfter: answer.headers.get("retry-after"), limit: answer.headers.get("ratelimit"), body: await answer.json() }
    } catch (error) {
      return { error: String(error) }
    }
  }, [appliance + path, headers, body])

  const query = JSON.stringify({ query: "{ v2_stats_count { name value } }" })
  const refused = await ask("/v1/graphql", {}, query)
  assert.equal(refused.status, 401, JSON.stringify(refused))
  assert.equal(refused.body.code, "missing_api_key")
  assert.ok(refused.body.message)

  await ask("/v1/graphql", {}, query)
  const limited = await ask("/v1/graphql", {}, query)
  assert.equal(limited.status, 429, JSON.stringify(limited))
  assert.equal(limited.body.code, "rate_limited")
  assert.ok(Number(limited.retryAfter) > 0)
  assert.match(limited.limit, /^"address";r=0;t=\d+$/)

  const answered = await ask("/v1/graphql", { "x-api-key": key }, query)
  assert.equal(answered.status, 200, JSON.stringify(answered))
  assert.ok(answered.body.data.v2_stats_count.length > 0)

  const attested = await ask("/functions/v1/attest", { "x-api-key": key }, JSON.stringify({
    unspendableAddress: "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", beneficiary: "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
  }))
  assert.equal(attested.status, 200, JSON.stringify(attested))
  console.log("ok")
} finally {
  await browser.close()
}
