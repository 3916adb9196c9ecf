// Checks that a leaf is in a log, with nothing but what the browser has: RFC 6962 hashes (WebCrypto), C2SP tlog-proof,
// tlog-checkpoint and signed-note. Every function throws a Refused for what is malformed or does not hold.

export class Refused extends Error {}

/** Whether this browser can check hashes here: it offers WebCrypto over TLS and on this machine only. */
export const canHash = () => Boolean(globalThis.crypto?.subtle)

const proofHeader = "c2sp.org/tlog-proof@v1"
const hashSize = 32
const ed25519 = 1 // the type of a signed-note's key

/** Reads a C2SP tlog-proof: {index, hashes, extra, checkpoint}. extra is null where there is none. */
export function parseProof(text) {
  const end = text.indexOf("\n\n")
  if (end < 0) throw new Refused("the proof has no checkpoint")
  const lines = text.slice(0, end).split("\n")
  if (lines.shift() !== proofHeader) throw new Refused(`the first line is not ${proofHeader}`)
  const extra = lines[0]?.startsWith("extra ") ? base64(lines.shift().slice(6), "the extra data") : null
  const index = /^index (0|[1-9][0-9]{0,18})$/.exec(lines.shift() ?? "")
  if (!index) throw new Refused("the proof has no index")
  const hashes = lines.map(line => hashOf(line, "a hash of the proof"))
  return { index: BigInt(index[1]), hashes, extra, checkpoint: text.slice(end + 2) }
}

/** Reads a C2SP tlog-checkpoint: {origin, size, root, text, signatures: [{name, bytes}]}. No signature is checked. */
export function parseCheckpoint(note) {
  const end = note.lastIndexOf("\n\n")
  if (end < 0 || !note.endsWith("\n")) throw new Refused("the checkpoint is not signed")
  const text = note.slice(0, end + 1)
  const [origin, size, root] = text.split("\n")
  if (!origin || !/^(0|[1-9][0-9]{0,18})$/.test(size ?? "")) throw new Refused("the checkpoint has no size")
  const signatures = note.slice(end + 2, -1).split("\n").map(line => {
    const [, name, bytes] = /^— (\S+) (\S+)$/.exec(line) ?? []
    if (!name) throw new Refused("a signature of the checkpoint is malformed")
    return { name, bytes: base64(bytes, "a signature") }
  })
  return { origin, size: BigInt(size), root: hashOf(root ?? "", "the checkpoint's root"), text, signatures }
}

/** The hash of a leaf: SHA-256(0x00 ‖ leaf). */
export const leafHash = leaf => sha256(Uint8Array.of(0), leaf)

const nodeHash = (left, right) => sha256(Uint8Array.of(1), left, right)

/**
 * Goes from a leaf's hash up to the root (RFC 9162, section 2.1.3.2), and returns {steps, root}. Each step has the sibling, the
 * side it stands on, the first record and the one after the last that it covers, and the hash of both together.
 */
async function climb(index, size, leaf, hashes) {
  if (index >= size) throw new Refused(`record ${index} is not among the ${size} of the checkpoint`)
  const steps = []
  let [node, last, level, hash] = [index, size - 1n, 0n, leaf]
  for (const sibling of hashes) {
    if (last === 0n) throw new Refused("the proof has more hashes than the tree has levels")
    while (node === last && node % 2n === 0n) [node, last, level] = [node / 2n, last / 2n, level + 1n] // no sibling at this level
    const left = node % 2n === 1n
    const first = (left ? node - 1n : node + 1n) << level
    const end = first + (1n << level)
    hash = left ? await nodeHash(sibling, hash) : await nodeHash(hash, sibling)
    steps.push({ sibling, side: left ? "left" : "right", first, end: end < size ? end : size, hash })
    ;[node, last, level] = [node / 2n, last / 2n, level + 1n]
  }
  while (last !== 0n && node === last && node % 2n === 0n) [node, last] = [node / 2n, last / 2n]
  if (last !== 0n) throw new Refused("the proof has fewer hashes than the tree has levels")
  return { steps, root: hash }
}

/**
 * Throws unless a leaf of that hash is in the tree of the checkpoint. Returns {hash, steps, root}, the leaf's hash with what climb returns;
 * where the root is another one, the error has these as climbed.
 */
export async function checkInclusion(hash, proof, checkpoint) {
  const climbed = { hash, ...await climb(proof.index, checkpoint.size, hash, proof.hashes) }
  if (equal(climbed.root, checkpoint.root)) return climbed
  throw Object.assign(new Refused("the hashes lead to another root than the checkpoint's"), { climbed })
}

/**
 * Checks the log's signature on a checkpoint with a verifier key (C2SP signed-note, Ed25519). Returns whether it could be checked:
 * false means that this browser's WebCrypto has no Ed25519.
 */
export async function checkSignature(checkpoint, verifierKey) {
  const { name, id, publicKey } = await parseVerifierKey(verifierKey)
  if (checkpoint.origin !== name) throw new Refused(`the checkpoint is of the log ${checkpoint.origin}, not of ${name}`)
  const ours = checkpoint.signatures.filter(s => s.name === name && equal(s.bytes.slice(0, 4), id))
  if (ours.length !== 1) throw new Refused("the checkpoint has no signature of the log's key")
  let key
  try {
    key = await crypto.subtle.importKey("raw", publicKey, "Ed25519", false, ["verify"])
  } catch (error) {
    if (error.name === "NotSupportedError") return false
    throw new Refused("the log's verifier key is no Ed25519 key")
  }
  const text = new TextEncoder().encode(checkpoint.text)
  if (!await crypto.subtle.verify("Ed25519", key, ours[0].bytes.slice(4), text)) {
    throw new Refused("the signature of the checkpoint is not by the log's key")
  }
  return true
}

/** Reads a verifier key, NAME+ID+KEY: the id is the first bytes of SHA-256(name ‖ newline ‖ type ‖ key). */
async function parseVerifierKey(text) {
  const [, name, id, encoded] = /^([^+\s]+)\+([0-9a-f]{8})\+(\S+)$/.exec(text) ?? []
  if (!name) throw new Refused("the log's verifier key is malformed")
  const key = base64(encoded, "the verifier key")
  const hash = await sha256(new TextEncoder().encode(name + "\n"), key)
  if (key[0] !== ed25519 || key.length !== 1 + hashSize || hex(hash.slice(0, 4)) !== id) {
    throw new Refused("the log's verifier key is malformed")
  }
  return { name, id: hash.slice(0, 4), publicKey: key.slice(1) }
}

export const hex = bytes => Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("")

/** Reads hex digits, two a byte. */
export function unhex(text) {
  if (!/^([0-9a-f]{2})*$/.test(text)) throw new Refused("not hex digits")
  return Uint8Array.from(text.match(/../g) ?? [], pair => parseInt(pair, 16))
}

function equal(a, b) {
  return a.length === b.length && a.every((byte, i) => byte === b[i])
}

function hashOf(text, what) {
  const bytes = base64(text, what)
  if (bytes.length !== hashSize) throw new Refused(`${what} has ${bytes.length} bytes, not ${hashSize}`)
  return bytes
}

/** Reads base64 as RFC 4648 has it, and refuses what it would not write. */
function base64(text, what) {
  try {
    const binary = atob(text)
    if (btoa(binary) === text) return Uint8Array.from(binary, c => c.charCodeAt(0))
  } catch {
    // told below
  }
  throw new Refused(`${what} is not base64`)
}

async function sha256(...parts) {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0))
  let at = 0
  for (const part of parts) {
    all.set(part, at)
    at += part.length
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", all))
}
