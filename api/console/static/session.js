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

// Sends a form once: a second click would make a second key. A page that comes back out of the browser's memory may send again.
const sent = new Set()
document.addEventListener("submit", event => {
  if (event.defaultPrevented || event.target.method !== "post") return
  if (sent.has(event.target)) return event.preventDefault()
  sent.add(event.target)
})
addEventListener("pageshow", () => sent.clear())

// Where the navigation is wider than the screen, shows which page this is.
const here = document.querySelector("nav [aria-current]")
here?.closest("nav").scrollTo({ left: here.offsetLeft - here.closest("nav").clientWidth / 2 })
