// Makes passkeys and signs with them (WebAuthn). The server needs bytes as base64url.
const text = bytes => btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")
const bytes = text => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), c => c.charCodeAt(0))

const failed = document.getElementById("failed")
function tell(error) {
  failed.textContent = `The passkey was not used: ${error.message}`
  failed.hidden = false
}

/** Sends a form, once the authenticator has given the values of its hidden fields. */
function signs(form, ask) {
  form.addEventListener("submit", async event => {
    event.preventDefault()
    const button = form.querySelector("button")
    button.disabled = true
    try {
      for (const [name, value] of Object.entries(await ask(form.dataset))) form.elements[name].value = value
      form.submit()
    } catch (error) {
      tell(error)
      button.disabled = false
    }
  })
}

for (const form of document.querySelectorAll("form[data-challenge]")) {
  signs(form, async ({ challenge, passkeys, from }) => {
    const { rawId, response } = await navigator.credentials.get({
      publicKey: {
        challenge: bytes(challenge), rpId: from, userVerification: "required", timeout: 120_000,
        allowCredentials: passkeys.split(" ").map(id => ({ type: "public-key", id: bytes(id) })),
      },
    })
    return {
      credential: text(rawId), authenticatorData: text(response.authenticatorData),
      clientData: text(response.clientDataJSON), signature: text(response.signature),
    }
  })
}

const enrol = document.querySelector("form[data-enrol]")
if (enrol) {
  signs(enrol, async ({ enrol: rpId }) => {
    const name = enrol.elements.name.value.trim()
    const { rawId, response } = await navigator.credentials.create({
      publicKey: {
        rp: { id: rpId, name: "attestd" },
        user: { id: new TextEncoder().encode(name), name, displayName: name },
        // What signs is verified later, with the key; the challenge of a new key proves nothing.
        challenge: crypto.getRandomValues(new Uint8Array(32)),
        pubKeyCredParams: [-7, -8, -257].map(alg => ({ type: "public-key", alg })),
        authenticatorSelection: { residentKey: "preferred", userVerification: "required" },
        attestation: "none", timeout: 120_000,
      },
    })
    return { credential: text(rawId), publicKey: text(response.getPublicKey()) }
  })
}
