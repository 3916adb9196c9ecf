// The editor's code is loaded statically, so that its styles land in the page's one style sheet.
import * as monaco from "monaco-graphql/esm/monaco-editor.js"
import "@graphiql/react/style.css"
import "@graphiql/plugin-doc-explorer/style.css"
import "@graphiql/plugin-history/style.css"
import "graphiql/graphiql.css"
import "./playground.css"

import { GraphiQL } from "graphiql"
import { createRoot } from "react-dom/client"
import { examples } from "./examples.js"
import { activeTab, keylessStorage } from "./storage.js"

// WORKERS is put here by build.mjs: editor label -> file name beside this script.
globalThis.MonacoEnvironment = {
  getWorker: (_id, label) => new Worker(new URL(WORKERS[label] ?? WORKERS.editor, import.meta.url)),
}

const endpoint = document.querySelector('meta[name="attestd-endpoint"]').content

async function fetcher({ query, variables, operationName }, { headers } = {}) {
  // For a moment after a change of tabs, GraphiQL still has the operation of the tab before.
  if (!query.includes(operationName)) operationName = undefined
  const response = await fetch(endpoint, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      accept: "application/graphql-response+json, application/json",
      ...headers,
    },
    body: JSON.stringify({ query, variables, operationName }),
  })
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

// What the editors open with has to be said: GraphiQL itself puts only the query of a first tab into them.
const active = activeTab(localStorage) ?? examples[0]

const narrow = matchMedia("(max-width: 700px)").matches

createRoot(document.getElementById("graphiql")).render(
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
      <span className="attestd-logo">attestd</span>
    </GraphiQL.Logo>
  </GraphiQL>,
)
