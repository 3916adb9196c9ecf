// Leads to the sign-in when the session ends, so that nothing stays on a screen that nobody may see any more.
const ends = performance.now() + 1000 * (Number(document.getElementById("session-ends").dataset.left) + 1)
const watch = () => {
  const left = ends - performance.now()
  setTimeout(left > 60_000 ? watch : () => location.reload(), Math.max(0, Math.min(left, 60_000)))
}
watch()

// Copies the text of the element before a button: <code>…</code><button type="button" data-copy>Copy</button>.
document.addEventListener("click", async event => {
  const button = event.target.closest("[data-copy]")
  if (!button) return
  await navigator.clipboard.writeText(button.previousElementSibling.textContent)
  const said = button.textContent
  button.textContent = "Copied"
  setTimeout(() => (button.textContent = said), 1500)
})

// Sends a form once: a second click would make a second key. A form that downloads a file leaves the page as it is. A page that comes back out of the browser's memory may send again.
const sent = new Set()
document.addEventListener("submit", event => {
  if (event.defaultPrevented || event.target.method !== "post" || "downloads" in event.target.dataset) return
  if (sent.has(event.target)) return event.preventDefault()
  sent.add(event.target)
})
addEventListener("pageshow", () => sent.clear())

// Keeps what was entered while the user has to sign in again. The page that comes back has the form filled in.
for (const form of document.querySelectorAll("form[data-keep]")) {
  const name = `kept ${form.action}`
  const kept = JSON.parse(sessionStorage.getItem(name) ?? "null")
  sessionStorage.removeItem(name)
  if (kept && !document.getElementById("made")) {
    for (const field of form.elements) {
      const values = kept.filter(([name]) => name === field.name).map(([, value]) => value)
      if (field.type === "checkbox") field.checked = values.includes(field.value)
      else if (field.name && values.length) field.value = values[0]
    }
  }
  form.addEventListener("submit", () => sessionStorage.setItem(name, JSON.stringify([...new FormData(form)])))
}
