/** How long a stream may be silent: the server tells something every few seconds. */
const silence = 20_000

/**
 * Follows server-sent events at `path` while the page is seen: a browser has six connections to a host, and a page in the background needs none.
 * `on` has a function for each event's name. When the session ends, the page leads to the sign-in. While nothing comes, the page says so: what it
 * shows is old.
 */
export function follow(path, on) {
  let source, heard
  const lost = () => { document.getElementById("lost").hidden = false }
  const hear = () => {
    clearTimeout(heard)
    heard = setTimeout(() => { lost(); open() }, silence)
    document.getElementById("lost").hidden = true
  }
  const open = () => {
    source?.close()
    clearTimeout(heard)
    source = new EventSource(path)
    source.addEventListener("open", hear)
    for (const [name, handle] of Object.entries(on)) source.addEventListener(name, event => { hear(); handle(JSON.parse(event.data)) })
    source.addEventListener("still", hear)
    source.addEventListener("end", () => location.reload())
    source.addEventListener("error", () => {
      lost()
      // Not an answer to follow: the session may have ended while the page was not seen.
      if (source.readyState === EventSource.CLOSED) heard = setTimeout(() => location.reload(), 3000)
    })
  }
  const look = () => {
    if (document.visibilityState === "visible") return open()
    source?.close()
    clearTimeout(heard)
  }
  document.addEventListener("visibilitychange", look)
  look()
}
