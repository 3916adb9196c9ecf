/** Runs the steps in turn, says how each went, and sets the exit code. */
export async function run(steps) {
  for (const [name, body] of Object.entries(steps)) {
    try {
      const told = await body()
      console.log(`ok: ${name}${told ? `: ${told}` : ""}`)
    } catch (error) {
      console.error(`FAILED: ${name}\n${error.stack ?? error}`)
      process.exitCode = 1
    }
  }
}

/**
 * Lets the process reach `url` alone. Requests to the hosted service's fixed address, which the SDK has in its code, go
 * to `url` instead: only the address is changed. Returns what was asked for, for the test to look at.
 */
export function reachOnly(url) {
  const asked = []
  const original = globalThis.fetch
  globalThis.fetch = (input, init) => {
    const target = new URL(input instanceof Request ? input.url : input)
    asked.push(target.href)
    if (target.pathname === "/v1/graphql" && target.origin !== new URL(url).origin) return original(url, init)
    if (target.origin !== new URL(url).origin) throw new Error(`a request to ${target.origin}`)
    return original(input, init)
  }
  return asked
}
