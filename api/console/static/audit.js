// Starts an audit, shows how far it is, and ends it when the page is left. Takes a checkpoint that is dropped.
const form = document.getElementById("audit")
if (form) {
  form.addEventListener("submit", event => {
    event.preventDefault()
    audit(form)
  })
  takeDrops(document.getElementById("drop"), document.getElementById("file"))
}

async function audit(form) {
  const start = form.querySelector(".primary")
  const stop = document.getElementById("stop")
  const result = document.getElementById("result")
  const control = new AbortController()
  const end = () => control.abort()
  stop.addEventListener("click", end)
  start.disabled = !(stop.hidden = false)
  result.replaceChildren()
  showProgress(0, 0)
  try {
    const answer = await fetch(form.action, { method: "POST", body: new FormData(form), headers: { Accept: "text/event-stream" }, signal: control.signal })
    if (!answer.headers.get("Content-Type")?.startsWith("text/event-stream")) return showAnswer(result, await answer.text())
    let told = false
    for await (const { name, data } of events(answer.body)) {
      if (name === "progress") showProgress(data.done ?? 0, data.total ?? 0)
      if (name === "end") return location.reload()
      if (name !== "result") continue
      told = Boolean(result.innerHTML = data)
      if (document.getElementById("result-title")) document.getElementById("last")?.remove() // this is the last one now
    }
    if (!told) say(result, "The audit ended without a result. The appliance's log has the reason.")
  } catch (error) {
    if (!control.signal.aborted) return say(result, `The connection to the audit broke: ${error.message}.`)
    say(result, "Audit stopped. It found no faults so far, but the journal is not verified.")
  } finally {
    stop.removeEventListener("click", end)
    start.disabled = !(stop.hidden = true)
    document.getElementById("progress").hidden = true
  }
}

/** The events of a stream (HTML, section 9.2): EventSource cannot send a form. */
async function* events(body) {
  let rest = ""
  for (const reader = body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
    const { value, done } = await reader.read()
    if (done) return
    const blocks = (rest + value).split("\n\n")
    rest = blocks.pop()
    for (const block of blocks) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(block) ?? []
      if (name) yield { name, data: JSON.parse(data) }
    }
  }
}

const count = n => n.toLocaleString("en") // as on the pages

function showProgress(done, total) {
  const box = document.getElementById("progress")
  const bar = box.querySelector("progress")
  box.hidden = false
  if (total > 0) [bar.max, bar.value] = [total, done]
  else bar.removeAttribute("value")
  box.querySelector("p").textContent = total > 0 ? `${count(done)} of ${count(total)} records` : "Starting"
}

/** Shows what another page would say: that one has to sign in again, or that an audit is running. */
function showAnswer(result, html) {
  const page = new DOMParser().parseFromString(html, "text/html")
  result.replaceChildren(...page.querySelector("main")?.children ?? [])
  result.querySelector("h1")?.remove()
}

function say(result, text) {
  const notice = document.createElement("p")
  notice.className = "notice warn"
  notice.textContent = text
  result.replaceChildren(notice)
}

/** Puts a file that is dropped into the form's. */
function takeDrops(area, input) {
  for (const kind of ["dragenter", "dragover"]) {
    area.addEventListener(kind, event => {
      event.preventDefault()
      area.classList.add("over")
    })
  }
  for (const kind of ["dragleave", "drop"]) area.addEventListener(kind, () => area.classList.remove("over"))
  area.addEventListener("drop", event => {
    event.preventDefault()
    if (event.dataTransfer.files.length) input.files = event.dataTransfer.files
    else document.getElementById("checkpoint").value = event.dataTransfer.getData("text/plain")
  })
}
