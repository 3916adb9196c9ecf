// Shows a webhook and its deliveries as they go on.
import { follow } from "./live.js"

const live = document.getElementById("live")
if (live) follow(live.dataset.path, { live: html => (live.innerHTML = html) })
