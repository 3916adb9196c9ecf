// Without script, a click on the address selects all of it.
for (const shown of navigator.clipboard ? document.querySelectorAll("[data-copy]") : []) {
  const button = document.createElement("button")
  button.type = "button"
  button.textContent = "Copy the address"
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(shown.textContent.trim())
    button.textContent = "Copied"
  })
  shown.after(button)
}
