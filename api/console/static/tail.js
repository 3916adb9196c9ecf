// A list that new rows are added to as they come.
import { follow } from "./live.js"

const shown = 50 // rows that are kept in the list

/** Adds rows as they come, unless they shall wait. */
export function showTail(tail) {
  const rows = document.getElementById("rows")
  const state = tail.querySelector(".state")
  const button = tail.querySelector("button")
  let waiting = [] // while paused
  tail.hidden = false

  const add = ({ html, left }) => {
    const made = document.createElement("tbody")
    made.innerHTML = html
    for (const row of [...made.rows].reverse()) {
      if (document.getElementById(row.id)) continue // told once more after the connection was lost
      row.classList.add("fresh")
      rows.prepend(row)
    }
    while (rows.rows.length > shown) rows.rows[rows.rows.length - 1].remove()
    document.getElementById("none")?.remove()
    state.textContent = left > 0 ? `Live; ${left.toLocaleString("en")} not shown (too many at once)` : "Live"
  }
  button.addEventListener("click", () => {
    const paused = button.getAttribute("aria-pressed") !== "true"
    button.setAttribute("aria-pressed", paused)
    button.textContent = paused ? "Resume" : "Pause"
    state.classList.toggle("good", !paused)
    state.textContent = paused ? "Paused" : "Live"
    if (!paused) for (const told of waiting.splice(0)) add(told)
  })
  follow(`${tail.dataset.path}?after=${tail.dataset.newest}`, {
    rows: told => (button.getAttribute("aria-pressed") === "true" ? waiting = [...waiting.slice(-shown), told] : add(told)),
  })
}
