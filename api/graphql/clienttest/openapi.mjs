// Checks api/openapi.yaml by redocly's recommended rules, of which a warning fails, too: node openapi.mjs FILE
import { createConfig, lint } from "@redocly/openapi-core"

const problems = await lint({ ref: process.argv[2], config: await createConfig({ extends: ["recommended"] }) })
for (const { severity, ruleId, message, location } of problems) console.log(`${severity} ${ruleId}: ${message} at ${location?.[0]?.pointer}`)
process.exitCode = problems.length > 0 ? 1 : 0
