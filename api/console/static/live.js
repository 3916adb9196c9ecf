/**
 * Follows server-sent events at `path` while the page is seen: a browser has six connections to a host, and a page in the background needs none.
 * `on` has a function for each event's name. When the session ends, the page leads to the sign-in.
 */
export function follow(path, on) {
  let source
  const open = () => {
    source = new EventSource(path)
    for (const [name, handle] of Object.entries(on)) source.addEventListener(name, event => handle(JSON.parse(event.data)))
    source.addEventListener("end", () => location.reload())
    source.addEventListener("error", () => source.readyState === EventSource.CLOSED && setTimeout(open, 5000))
  }
  const look = () => {
    source?.close()
    if (document.visibilityState === "visible") open()
  }
  document.addEventListener("visibilitychange", look)
  look()
}
