// The editor's code is loaded statically, so that its styles land in the page's one style sheet.
import * as monaco from "monaco-graphql/esm/monaco-editor.js"
import "@graphiql/react/style.css"
import "@graphiql/plugin-doc-explorer/style.css"
import "@graphiql/plugin-history/style.css"
import "graphiql/graphiql.css"
import "./playground.css"

import { useGraphiQL, useGraphiQLActions } from "@graphiql/react"
import { GraphiQL } from "graphiql"
import { useEffect, useState } from "react"
import { createRoot } from "react-dom/client"
import { MONACO_THEME_DATA } from "../node_modules/@graphiql/react/dist/constants.js"
import { examples } from "./examples.js"
import { activeTab, keylessStorage } from "./storage.js"

// WORKERS is put here by build.mjs: editor label -> file name beside this script.
globalThis.MonacoEnvironment = {
  getWorker: (_id, label) => new Worker(new URL(WORKERS[label] ?? WORKERS.editor, import.meta.url)),
}

// What Monaco has for these is too faint (WCAG 2.1, 1.4.3): @cached, and on the dark background comments and the numbers of lines.
MONACO_THEME_DATA.light.rules.push({ token: "annotation", foreground: "#5f5f5f" })
MONACO_THEME_DATA.dark.rules.push({ token: "annotation", foreground: "#e59a9a" }, { token: "comment", foreground: "#8fbf7a" })
MONACO_THEME_DATA.dark.colors["editorLineNumber.foreground"] = "#a8b1c2"

// The API key is kept as long as the page, and nowhere else. A header of the editor goes over it.
let apiKey = ""
const keyWanted = "attestd-key-wanted"
const ofServer = name => document.querySelector(`meta[name="attestd-${name}"]`).content

async function fetcher({ query, variables, operationName }, { headers } = {}) {
  // For a moment after a change of tabs, GraphiQL still has the operation of the tab before.
  if (!query.includes(operationName)) operationName = undefined
  const response = await fetch(ofServer("endpoint"), {
    method: "POST",
    headers: {
      "content-type": "application/json",
      accept: "application/graphql-response+json, application/json",
      ...(apiKey && { "x-api-key": apiKey }),
      ...headers,
    },
    body: JSON.stringify({ query, variables, operationName }),
  })
  if (response.status === 401) dispatchEvent(new Event(keyWanted))
  const text = await response.text()
  try {
    return JSON.parse(text)
  } catch {
    return { errors: [{ message: `${response.status} ${response.statusText}: ${text.slice(0, 1000)}` }] }
  }
}

// GraphiQL picks the editor's theme once; this follows the system's when that changes, as the page around it does.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => {
  if (!document.body.matches(".graphiql-dark, .graphiql-light")) {
    monaco.editor.setTheme(matches ? "graphiql-DARK" : "graphiql-LIGHT")
  }
})

// GraphiQL's tabs contain buttons, which no tab may (WAI-ARIA 1.2, children presentational). They become a list of buttons, one of which is current.
// The name of a button in the history is the query, which it shows (WCAG 2.1, 2.5.3).
const root = document.getElementById("graphiql")
function mend() {
  for (const element of root.querySelectorAll('[role="tablist"], [role="tab"]')) element.removeAttribute("role")
  for (const tab of root.querySelectorAll(".graphiql-tab")) {
    tab.removeAttribute("aria-selected")
    tab.querySelector(".graphiql-tab-button")?.setAttribute("aria-current", tab.classList.contains("graphiql-tab-active"))
  }
  for (const button of root.querySelectorAll(".graphiql-history-item-label[aria-label]")) button.removeAttribute("aria-label")
  root.querySelector('[role="tabpanel"]')?.setAttribute("role", "region")
}
new MutationObserver(mend).observe(root, { subtree: true, childList: true, attributes: true, attributeFilter: ["role", "aria-selected", "class"] })

/** A field for the API key, where the server wants one or has refused a query for want of it. */
function KeyField() {
  const [wanted, want] = useState(ofServer("requires-key") === "true")
  const { introspect, run } = useGraphiQLActions()
  useEffect(() => {
    const show = () => want(true)
    addEventListener(keyWanted, show)
    return () => removeEventListener(keyWanted, show)
  }, [])
  const use = async event => {
    event.preventDefault()
    apiKey = new FormData(event.currentTarget).get("key").trim()
    await introspect()
    run()
  }
  return wanted && (
    <form className="attestd-key" onSubmit={use}>
      <label>API key <input name="key" type="password" autoComplete="off" spellCheck="false" required /></label>
      <button type="submit">Use</button>
    </form>
  )
}

/** Runs the first example for who has never been here: there is something to look at. */
function FirstRun() {
  const ready = useGraphiQL(state => Boolean(state.queryEditor && state.responseEditor)) // without either, run does nothing
  const { run } = useGraphiQLActions()
  useEffect(() => {
    if (ready && firstVisit && ofServer("requires-key") !== "true") run()
  }, [ready])
  return null
}

// What the editors open with has to be said: GraphiQL itself puts only the query of a first tab into them.
const active = activeTab(localStorage) ?? examples[0]
const firstVisit = active === examples[0]

const narrow = matchMedia("(max-width: 700px)").matches

createRoot(root).render(
  <GraphiQL
    fetcher={fetcher}
    defaultTabs={examples}
    initialQuery={active.query ?? undefined}
    initialVariables={active.variables ?? undefined}
    storage={keylessStorage(localStorage)}
    defaultEditorToolsVisibility={narrow ? false : "variables"}
    showPersistHeadersSettings={false}
    schemaDescription
    inputValueDeprecation
  >
    <GraphiQL.Logo>
      <FirstRun />
      <KeyField />
      <a className="attestd-logo" href="/">attestd</a>
    </GraphiQL.Logo>
  </GraphiQL>,
)
