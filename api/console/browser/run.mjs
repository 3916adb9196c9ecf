// Runs each script of this folder that is named: node run.mjs access overview …
const names = process.argv.slice(2)
if (names.includes("replica") || names.includes("operations")) process.env.RIG = process.env.FOLLOWER // whose replica follows an upstream
if (names.includes("quorum")) process.env.RIG = process.env.QUORUM // of three members
if (names.includes("indexer")) process.env.RIG = process.env.INDEXER // that reads chains
if (names.includes("day")) process.env.RIG = process.env.DAY // whose sink, RPC and witness fail
const { end } = await import("./harness.mjs")

try {
  for (const name of names) await (await import(`./${name}.mjs`)).default()
} finally {
  await end()
}
