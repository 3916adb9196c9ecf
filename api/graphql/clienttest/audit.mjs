// Runs the GraphQL over HTTP audit of graphql-http: node audit.mjs URL
// A MUST or SHOULD that is not met fails; a MAY that is not taken is only shown.
import { auditServer } from "graphql-http"

const [url] = process.argv.slice(2)
const results = await auditServer({ url })

let failed = 0
for (const result of results) {
  const level = result.name.split(" ")[0]
  const required = ["MUST", "SHOULD"].includes(level)
  if (result.status === "ok") {
    console.log(`ok: ${result.id} ${result.name}`)
  } else if (required) {
    failed++
    console.error(`FAILED: ${result.id} ${result.name}: ${result.reason}\n${await result.response?.text?.() ?? ""}`)
  } else {
    console.log(`not taken: ${result.id} ${result.name}: ${result.reason}`)
  }
}
console.log(`${results.length} audits, ${failed} required ones failed`)
process.exitCode = failed > 0 || results.length < 60 ? 1 : 0
