// Runs each script of this folder that is named: node run.mjs access overview …
import { end } from "./harness.mjs"

try {
  for (const name of process.argv.slice(2)) await (await import(`./${name}.mjs`)).default()
} finally {
  await end()
}
