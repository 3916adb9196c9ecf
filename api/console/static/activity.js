import { showTail } from "./tail.js"

const tail = document.getElementById("tail")
if (tail) showTail(tail)
