// The list that goes on by itself, and the check of a record's inclusion in the log.
import { showTail } from "./tail.js"
import { canHash, checkInclusion, checkSignature, hex, leafHash, parseCheckpoint, parseProof, Refused, unhex } from "./tlog.js"

const tail = document.getElementById("tail")
if (tail) showTail(tail)
const inclusion = document.getElementById("inclusion")
if (inclusion) showInclusion(inclusion)

/** Checks the proof that can be downloaded against the leaf and the log's key, and draws the way from the leaf to the root. */
async function showInclusion(section) {
  const { proof: path, verifierKey, leaf, leafHash: toldHash, id } = section.dataset
  const say = (state, text) => {
    const verdict = section.querySelector(".verdict")
    verdict.className = "verdict"
    verdict.replaceChildren(element("span", `state ${state}`, text))
  }
  if (!canHash()) return say("warn", "Not checked: browsers disable WebCrypto for plain HTTP to another machine.")
  let checkpoint, proof
  try {
    const answer = await fetch(path)
    if (!answer.ok) throw new Refused(`the proof could not be fetched (${answer.status})`)
    proof = parseProof(await answer.text())
    checkpoint = parseCheckpoint(proof.checkpoint)
    const bytes = unhex(leaf)
    if (leaf && JSON.parse(new TextDecoder().decode(bytes)).id !== id) throw new Refused("the leaf belongs to another record")
    const hash = leaf ? await leafHash(bytes) : unhex(toldHash)
    if (hex(hash) !== toldHash) throw new Refused("the leaf's hash differs from the appliance's")
    draw(section, proof, checkpoint, await checkInclusion(hash, proof, checkpoint))
    const signed = await checkSignature(checkpoint, verifierKey)
    say(signed ? "good" : "warn", verdictOf(proof, checkpoint, signed))
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error)
    if (error.climbed) draw(section, proof, checkpoint, error.climbed)
    say("bad", `Not proven: ${error.message}.`)
  }
}

const count = n => n.toLocaleString("en") // as on the pages

function verdictOf(proof, checkpoint, signed) {
  const path = `Checked in this browser: ${proof.hashes.length} hashes lead from record ${count(proof.index)} to the root of the ${count(checkpoint.size)} records of the checkpoint`
  return signed
    ? `${path}, which the log's key has signed.`
    : `${path}. Its signature was not checked: this browser has no Ed25519.`
}

/** Draws each level of the tree: our hash and its neighbour, each on its side. */
function draw(section, proof, checkpoint, { steps, root, hash }) {
  let ours = { first: proof.index, end: proof.index + 1n, hash }
  const levels = steps.map(step => {
    const level = element("li", "level")
    level.append(
      node(`node ours ${step.side === "left" ? "right" : "left"}`, range(ours.first, ours.end), ours.hash),
      node(`node ${step.side}`, range(step.first, step.end), step.sibling))
    ours = { first: step.side === "left" ? step.first : ours.first, end: step.side === "left" ? ours.end : step.end, hash: step.hash }
    return level
  })
  const holds = hex(root) === hex(checkpoint.root)
  const last = node(`node root ${holds ? "ours" : "wrong"}`, holds ? `Root of ${count(checkpoint.size)} records, as in the checkpoint` : "This is not the checkpoint's root", root, "li")
  section.querySelector(".climb").replaceChildren(...levels, last)
}

const range = (first, end) => end - first === 1n ? `Record ${count(first)}` : `Records ${count(first)} to ${count(end - 1n)}`

function node(classes, title, hash, tag = "div") {
  const made = element(tag, classes)
  made.append(element("b", "", title), element("code", "", hex(hash)))
  return made
}

function element(tag, classes, text) {
  const made = document.createElement(tag)
  if (classes) made.className = classes
  if (text) made.textContent = text
  return made
}
