// Shows a part of the appliance as it goes on.
import { follow } from "./live.js"

const live = document.getElementById("live")
follow(`${location.pathname}/live`, { live: html => (live.innerHTML = html) })
