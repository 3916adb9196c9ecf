// Holds static/tlog.js against proofs that Go has judged. Run by tlog_test.go: node tlog_test.mjs VECTORS.json
import assert from "node:assert/strict"
import { readFile } from "node:fs/promises"
import { checkInclusion, checkSignature, hex, leafHash, parseCheckpoint, parseProof, Refused, unhex } from "./static/tlog.js"

const { verifierKey, vectors } = JSON.parse(await readFile(process.argv[2], "utf8"))

/** What the browser says of a proof. */
async function judge({ proof, leaf }) {
  const { index, hashes, checkpoint: note } = parseProof(proof)
  const checkpoint = parseCheckpoint(note)
  const hash = await leafHash(unhex(leaf))
  const { steps, root } = await checkInclusion(hash, { index, hashes }, checkpoint)
  assert.equal(await checkSignature(checkpoint, verifierKey), true, "this Node.js has no Ed25519")
  assert.equal(hex(root), hex(checkpoint.root))
  assert.equal(steps.length, hashes.length)
  covered(steps, index, checkpoint.size)
}

/** The siblings and the leaf cover all records of the tree, each once. */
function covered(steps, index, size) {
  let [first, end] = [index, index + 1n]
  for (const step of steps) {
    assert.equal(step.side === "left" ? step.end : step.first, step.side === "left" ? first : end)
    if (step.side === "left") first = step.first
    else end = step.end
  }
  assert.deepEqual([first, end], [0n, size])
}

const count = { good: 0, refused: 0 }
for (const vector of vectors) {
  const error = await judge(vector).then(() => null, error => error)
  if (error && !(error instanceof Refused)) throw error
  assert.equal(error === null, vector.good, `${vector.what}: Go says ${vector.good}, the browser ${error?.message ?? "good"}`)
  count[vector.good ? "good" : "refused"]++
}
assert.ok(count.good > 0 && count.refused > 0)
console.log(`${count.good} proofs are good, ${count.refused} are refused`)
