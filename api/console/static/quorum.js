// Shows the quorum as it goes on.
import { follow } from "./live.js"

const live = document.getElementById("live")
follow("/quorum/live", { live: html => (live.innerHTML = html) })
