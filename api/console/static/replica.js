// Shows the replica as it goes on.
import { follow } from "./live.js"

const live = document.getElementById("live")
follow("/replica/live", { live: html => (live.innerHTML = html) })
