// Shows the chains as they are read.
import { follow } from "./live.js"

const live = document.getElementById("live")
follow("/indexer/live", { live: html => (live.innerHTML = html) })
